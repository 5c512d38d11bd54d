"""Typed reading of a JSON object: null is absent, a wrong type or range is a 400 that names the field.

A Fields remembers which names were asked for, so the rest can be reported as ignored.
"""

from __future__ import annotations

import math
from typing import Any

from strata_cli.server.errors import BadField, unsupported

_NAMES = {str: "a string", bool: "a boolean", list: "a list", dict: "an object"}


class Fields:
    """One object of a request body. `where` is its path for error messages ("" = the body)."""

    def __init__(self, body: dict[str, Any], where: str = "") -> None:
        self._body, self._where = body, where
        self._seen: set[str] = set()

    def path(self, name: str) -> str:
        """The full path of a field."""
        return f"{self._where}.{name}" if self._where else name

    def value(self, name: str) -> Any:
        """The raw value; None when absent or null."""
        self._seen.add(name)
        return self._body.get(name)

    def text(self, name: str) -> str | None:
        """A string."""
        return self._typed(name, str)

    def boolean(self, name: str) -> bool | None:
        """true or false."""
        return self._typed(name, bool)

    def items(self, name: str) -> list[Any] | None:
        """A list."""
        return self._typed(name, list)

    def object(self, name: str) -> dict[str, Any] | None:
        """An object."""
        return self._typed(name, dict)

    def number(self, name: str, low: float, high: float) -> float | None:
        """A finite number within low..high."""
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadField(self.path(name), f"must be a number, not {_shown(value)}", "invalid_type")
        if not low <= value <= high or not math.isfinite(value):
            raise BadField(self.path(name), f"{value:g} is outside {low:g} to {high:g}")
        return float(value)

    def integer(self, name: str, low: int, high: int) -> int | None:
        """A whole number within low..high; 5.0 counts as 5."""
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadField(self.path(name), f"must be a whole number, not {_shown(value)}", "invalid_type")
        if not low <= value <= high:
            raise BadField(self.path(name), f"{_shown(value)} is outside {low} to {high}")
        return value

    def only(self, name: str, *allowed: Any) -> None:
        """A known field of which only these values (and null) can be done; anything else is refused."""
        value = self.value(name)
        if value is not None and not any(type(value) is type(one) and value == one for one in allowed):
            raise unsupported(self.path(name), f"the value {_shown(value)}")

    def skip(self, *names: str) -> None:
        """Fields without effect on the answer (labels for the client's own use): accepted and not reported."""
        self._seen.update(names)

    def left(self) -> tuple[str, ...]:
        """Names nobody asked for, in body order; nulls are not reported."""
        return tuple(n for n, v in self._body.items() if n not in self._seen and v is not None)

    def _typed(self, name: str, kind: type) -> Any:
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, kind):
            raise BadField(self.path(name), f"must be {_NAMES[kind]}, not {_shown(value)}", "invalid_type")
        return value


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    if isinstance(value, list | dict):
        return _NAMES[type(value)]
    text = {True: "true", False: "false", None: "null"}.get(value, None) if isinstance(value, bool | None) else None
    return text or str(value)[:40]
