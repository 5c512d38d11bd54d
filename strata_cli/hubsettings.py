"""Addresses and tokens of the hubs, from the environment and the token file; values go down to the registry as data."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from strata_engine.env import Env
from strata_engine.paths import expand

if TYPE_CHECKING:
    from strata_engine.registry.hubs.base import HubSettings


def hub_settings(env: Env, mirror: str = "") -> HubSettings:
    """Settings for all hubs. `mirror` takes the place of the Hugging Face endpoint."""
    from strata_engine.registry.hubs.base import HubSettings

    home = _hf_home(env)
    cache = expand(env.get("HF_HUB_CACHE") or home / "hub")
    found = HubSettings(hf_token=_token(env, home), hf_cache=cache, modelscope_token=env.get("MODELSCOPE_API_TOKEN"),
                        ca_file=env.get("REQUESTS_CA_BUNDLE"))  # fmt: skip
    endpoints = {"hf_endpoint": mirror or env.get("HF_ENDPOINT"), "modelscope_endpoint": env.get("MODELSCOPE_ENDPOINT")}
    return dataclasses.replace(found, **{k: _address(v) for k, v in endpoints.items() if v})


def _hf_home(env: Env) -> Path:
    given = env.get("HF_HOME")
    if given:
        return expand(given)
    cache = env.get("XDG_CACHE_HOME")
    base = expand(cache) if cache else expand(env.get("HOME") or "~") / ".cache"
    return base / "huggingface"


def _token(env: Env, home: Path) -> str:
    if env.get("HF_TOKEN"):
        return env.get("HF_TOKEN").strip()
    try:
        text = expand(env.get("HF_TOKEN_PATH") or home / "token").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    return text.strip()


def _address(text: str) -> str:
    return text if "://" in text else f"https://{text}"
