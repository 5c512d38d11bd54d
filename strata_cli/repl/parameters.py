"""Sampling parameters by the names people type after /set parameter: the table of keys.py, and stop texts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from strata_cli.keys import SAMPLING_KEYS
from strata_engine.config import SamplingParams
from strata_engine.errors import UsageError

_KEYS = {key.name: key for key in SAMPLING_KEYS}
_NAMES = [*_KEYS, "stop"]
_OTHER_NAMES = {
    "temp": "temperature",
    "num_predict": "max_tokens",
    "n": "max_tokens",
    "penalty_last_n": "repeat_last_n",
}
_FIELDS = {"repeat_last_n": "penalty_last_n"}  # our name -> SamplingParams field, where they differ
_WHOLE_CONTEXT = 2**31 - 1


def read_parameter(name: str, text: str) -> tuple[str, str, object]:
    """(name, field of SamplingParams, value); `none` clears seed, max_tokens and stop. Raises UsageError."""
    name = name.lower().replace("-", "_")
    name = _OTHER_NAMES.get(name, name)
    if name not in _NAMES:
        if name in ("num_ctx", "ctx", "context"):
            raise UsageError("the context is fixed while a model is loaded", "start the chat with --ctx N")
        near = difflib.get_close_matches(name, _NAMES, 3) or _NAMES
        raise UsageError(f"no such parameter: {name}", "/set parameter " + ", ".join(near))
    if name == "stop":
        from strata_cli.flags import unescape

        return name, name, () if text.lower() == "none" else (unescape(text),)
    clears = name in ("seed", "max_tokens")
    try:
        value = -1 if clears and text.lower() == "none" else _KEYS[name].parse(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error
    if name == "max_tokens" and value == 0:
        raise UsageError("max_tokens 0: no answer would fit", "1 or more, or none")
    if value == -1 and clears:
        value = None
    elif value == -1 and name == "repeat_last_n":
        value = _WHOLE_CONTEXT
    return name, _FIELDS.get(name, name), value


def check_saved(field: str, value: object) -> object:
    """The value of a SamplingParams field from a saved session. Raises ValueError when it is none."""
    name = {v: k for k, v in _FIELDS.items()}.get(field, field)
    if name == "stop" and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(value)
    if name not in _KEYS or (value is None and name not in ("seed", "max_tokens")):
        raise ValueError(f"{field}: {value!r} is no value for it")
    return value if value is None else _KEYS[name].check(value)


def rows(params: SamplingParams, changed: set[str], origins: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(name, value, origin) for /show params."""
    found = []
    for name in _NAMES:
        field = _FIELDS.get(name, name)
        origin = (
            "set here" if field in changed else origins.get(name, "model or flag" if name == "stop" else "built-in")
        )
        found.append((name, _text(getattr(params, field)), origin))
    return found


def _text(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        return ", ".join(map(repr, value))
    return "whole context" if value == _WHOLE_CONTEXT else f"{value:g}" if isinstance(value, float) else str(value)
