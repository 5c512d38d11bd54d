"""Typed reading of a quantization_config, and the two ways it can be unusable."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from strata_engine.errors import CorruptFile, UsageError

_HINT = "Use a GGUF file of the model, or one quantised with GPTQ, AWQ, QQQ, compressed-tensors or FP8 blocks."


def refuse(what: str) -> UsageError:
    """A well-formed config of a kind that we do not run; `what` names it."""
    return UsageError(f"weights quantised with {what} cannot be run", hint=_HINT)


def malformed(what: str) -> CorruptFile:
    """A config that says something impossible."""
    return CorruptFile(f"quantization_config: {what}", hint="Pull the model again, or report it to its maker.")


def _found(config: Mapping[str, Any], names: Collection[str]) -> tuple[str, Any]:
    for name in names:
        if config.get(name) is not None:
            return name, config[name]
    return "", None


def number(config: Mapping[str, Any], names: Collection[str], default: int | None = None) -> int:
    """The first of these keys that is there. Raises CorruptFile: not a whole number, or absent without default."""
    name, value = _found(config, names)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise malformed(f"{name or ' or '.join(names)} is {value!r}, expected a whole number")
    return value


def choice(
    config: Mapping[str, Any], names: Collection[str], allowed: Collection[int], default: int | None = None
) -> int:
    """The same, of a few numbers. Raises UsageError for another one."""
    value = number(config, names, default)
    if value not in allowed:
        raise refuse(f"{value} bits")
    return value


def flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    """True or false. Raises CorruptFile."""
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise malformed(f"{name} is {value!r}, expected true or false")
    return value


def text(config: Mapping[str, Any], names: Collection[str], default: str) -> str:
    """The first of these keys that is there. Raises CorruptFile when it is no text."""
    name, value = _found(config, names)
    if value is None:
        return default
    if not isinstance(value, str):
        raise malformed(f"{name} is {value!r}, expected a text")
    return value


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A nested object, empty where absent. Raises CorruptFile."""
    value = config.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise malformed(f"{name} is {value!r}, expected an object")
    return value
