"""Settings: flag > environment > config file > model defaults > built-in, with the origin of each value.

The config file is a flat TOML file of the names in keys.py. A project's llmrun.toml counts only when named by --config.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_cli.globals import GlobalFlags
from strata_cli.keys import AUTO, KEYS, SAMPLING_KEYS
from strata_engine.config import EngineConfig, SamplingParams, SpecConfig
from strata_engine.env import Env
from strata_engine.errors import NotFound, UsageError
from strata_engine.paths import Paths, expand

BUILT_IN, MODEL, FLAG = "built-in", "model", "flag"
_PARAMS = {"repeat_last_n": "penalty_last_n"}  # our name -> SamplingParams field, where they differ
_WHOLE_CONTEXT = 2**31 - 1


@dataclass(frozen=True)
class Value:
    """One setting and where it came from: "flag", "LLMRUN_CTX", "FILE:LINE", "model" or "built-in"."""

    value: Any
    origin: str = BUILT_IN


@dataclass(frozen=True)
class Settings:
    """All settings merged. `catalog_files`: extra models.yaml files, strongest first, without the packaged one."""

    values: Mapping[str, Value]
    config_file: Path
    catalog_files: list[Path] = dataclasses.field(default_factory=list)

    def get(self, name: str) -> Any:
        """The value of a setting of keys.py. Raises KeyError for an unknown name."""
        return self.values[name].value

    def origin(self, name: str) -> str:
        """Where the value came from."""
        return self.values[name].origin

    def override(self, given: Mapping[str, Any], origin: str = FLAG) -> Settings:
        """The same settings with stronger values on top. Raises UsageError for a value out of range."""
        changed = dict(self.values)
        for name, value in given.items():
            changed[name] = Value(_checked(name, value, f"{origin} {KEYS[name].flag}"), origin)
        return dataclasses.replace(self, values=changed)

    def with_model_defaults(self, model: SamplingParams | None) -> Settings:
        """The model's own sampling defaults below what the user chose, above the built-in ones."""
        if model is None:
            return self
        changed = dict(self.values)
        for key in SAMPLING_KEYS:
            value = _from_params(key.name, model)
            if self.origin(key.name) == BUILT_IN and value != key.default:
                changed[key.name] = Value(value, MODEL)
        return dataclasses.replace(self, values=changed)

    def engine_config(self) -> EngineConfig:
        """How a model is loaded, by these settings."""
        context = self.get("ctx")
        return EngineConfig(
            context_tokens=None if context == AUTO else context,
            kv_type=self.get("kv_type"),
            kernels=self.get("kernels"),
            mode=self.get("mode"),
            threads=self.get("threads"),
            max_sequences=self.get("parallel"),
            batch_rows=self.get("batch"),
            device=self.get("device"),
            gpu_layers=_layers(self.get("gpu_layers")),
            cpu_experts=_layers(self.get("n_cpu_moe")),
            mmap=self.get("mmap"),
            prefix_cache=self.get("prefix_cache"),
            quantize_rest=self.get("quantize_rest"),
            spec=self._spec(),
        )

    def _spec(self) -> SpecConfig:
        return SpecConfig(
            method=self.get("spec"),
            draft=self.get("draft") or None,
            n_max=self.get("spec_n_max") or None,
            p_min=self.get("spec_p_min"),
            strict=self.get("spec_strict"),
            verify=self.get("spec_verify"),
            adaptive=self.get("spec_adaptive"),
        )

    def sampling(self, model: SamplingParams | None = None) -> SamplingParams:
        """How tokens are chosen, by these settings; fields without a setting are kept from `model`."""
        merged = self.with_model_defaults(model)
        fields = {_PARAMS.get(key.name, key.name): merged.get(key.name) for key in SAMPLING_KEYS}
        for name in ("seed", "max_tokens"):
            fields[name] = None if fields[name] == -1 else fields[name]
        if fields["penalty_last_n"] == -1:
            fields["penalty_last_n"] = _WHOLE_CONTEXT
        return dataclasses.replace(model or SamplingParams(), **fields)


def _layers(value: int | str) -> int | None:
    return None if value == AUTO else int(value)


def _from_params(name: str, params: SamplingParams) -> Any:
    value = getattr(params, _PARAMS.get(name, name))
    return -1 if value is None else value


def load_settings(flags: GlobalFlags, env: Env, paths: Paths) -> Settings:
    """Merge built-in values, the config file, the environment and global flags.

    Raises UsageError (unknown key, wrong type, bad TOML: with file and line) and NotFound (a named file is missing).
    """
    values = {name: Value(key.default) for name, key in KEYS.items()}
    file = config_path(flags, env, paths)
    values.update(read_config(file, must_exist=bool(flags.config or env.get("LLMRUN_CONFIG"))))
    values.update(_from_env(env))
    if flags.offline:
        values["offline"] = Value(True, FLAG)
    if flags.device is not None:
        values["device"] = Value(_checked("device", flags.device, "--device"), FLAG)
    return Settings(values, file, _catalog_files(flags, env, paths))


def config_path(flags: GlobalFlags, env: Env, paths: Paths) -> Path:
    """--config, else LLMRUN_CONFIG, else the user's config.toml (which need not exist)."""
    named = flags.config or env.get("LLMRUN_CONFIG")
    return expand(named).absolute() if named else paths.config / "config.toml"


def read_config(file: Path, must_exist: bool = False) -> dict[str, Value]:
    """Checked values of one config file; empty when there is none."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError) as error:
        if must_exist:
            raise NotFound(f"config file not found: {file}") from error
        return {}
    except IsADirectoryError as error:
        raise UsageError(f"config file {file} is a directory") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"config file {file}: not UTF-8 text (byte {error.start})") from error
    return parse_config(text, str(file))


def parse_config(text: str, name: str) -> dict[str, Value]:
    """Checked values of a config text; `name` is used in messages and origins."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        table: dict[str, Any] = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise UsageError(f"config file {name}: {error}", "llmrun config edit") from error
    found: dict[str, Value] = {}
    for key, value in table.items():
        where = f"{name}:{line_of(key, text)}"
        if key not in KEYS:
            raise UsageError(f"{where}: unknown setting {key}", near_keys(key))
        found[key] = Value(_checked(key, value, where), where)
    return found


def near_keys(name: str) -> str:
    """A hint with the names nearest to a wrong one."""
    wanted = name.strip("-").replace("-", "_")
    near = [n for n in KEYS if len(wanted) > 1 and n.startswith(wanted)]
    near = near or difflib.get_close_matches(wanted, KEYS, 3, 0.5)
    return " or ".join(near) if near else "llmrun config list"


def line_of(key: str, text: str) -> int:
    """Line of a top-level key or table in a TOML text, from 1; 1 when it cannot be told."""
    quoted = rf"(?:{re.escape(key)}|\"{re.escape(key)}\"|'{re.escape(key)}')"
    pattern = re.compile(rf"^\s*(?:\[+\s*{quoted}\s*[\].]|{quoted}\s*[.=])")
    return next((n for n, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 1)


def _checked(name: str, value: Any, where: str) -> Any:
    try:
        return KEYS[name].check(value)
    except ValueError as error:
        raise UsageError(f"{where}: {name}: {error}") from error


def _from_env(env: Env) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for key in KEYS.values():
        text = env.get(key.env) if key.env else ""
        if text and key.name != "offline":
            try:
                found[key.name] = Value(key.parse(text), key.env)
            except ValueError as error:
                raise UsageError(f"{key.env}: {error}") from error
    offline = [n for n in ("LLMRUN_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if env.flag(n)]
    if offline:
        found["offline"] = Value(True, offline[0])
    if env.flag("LLMRUN_NOHISTORY"):
        found["history"] = Value(False, "LLMRUN_NOHISTORY")
    return found


def _catalog_files(flags: GlobalFlags, env: Env, paths: Paths) -> list[Path]:
    named = [("--models", flags.models)] if flags.models else []
    named += [("LLMRUN_MODELS", text) for text in env.get("LLMRUN_MODELS").split(os.pathsep) if text]
    files: list[Path] = []
    for origin, text in named:
        file = expand(text).absolute()
        if not file.is_file():
            raise NotFound(f"{origin}: no such file: {text}")
        files.append(file)
    user = paths.config / "models.yaml"
    return [*files, user] if user.is_file() else files
