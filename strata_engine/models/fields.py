"""Typed reads of a checkpoint's own keys: a wrong or absent value is an error that names the key. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from strata_engine.errors import CorruptFile


class Fields:
    """A mapping with a name for error texts (the file's path)."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def has(self, key: str) -> bool:
        """Is the key there with a value other than null?"""
        return self._values.get(key) is not None

    def value(self, key: str) -> object:
        """As it is stored; None where absent."""
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number. Raises CorruptFile when absent without default, of another type, or below `least`."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < least:
            raise self._bad(key, value, f"a whole number of at least {least}")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number. Raises CorruptFile."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise self._bad(key, value, "a positive number")
        return float(value)

    def integers(self, key: str) -> frozenset[int]:
        """A list of whole numbers as a set; empty when absent. Raises CorruptFile."""
        value = self._values.get(key) or []
        if not isinstance(value, list) or not all(isinstance(n, int) and not isinstance(n, bool) for n in value):
            raise self._bad(key, value, "a list of whole numbers")
        return frozenset(value)

    def whole_numbers(self, key: str) -> list[int]:
        """A list of whole numbers in order, or one number as a list of one; empty when absent. Raises CorruptFile."""
        value = self._values.get(key)
        if value is None:
            return []
        found = list(value) if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in found):
            raise self._bad(key, value, "a list of whole numbers")
        return found

    def flags(self, key: str) -> list[bool]:
        """A list of booleans; empty when absent. Raises CorruptFile."""
        value = self._values.get(key)
        if value is None:
            return []
        if not isinstance(value, (list, tuple)) or not all(isinstance(flag, (bool, int)) for flag in value):
            raise self._bad(key, value, "a list of true and false")
        return [bool(flag) for flag in value]

    def texts(self, key: str) -> list[str]:
        """A list of strings; empty when absent. Raises CorruptFile."""
        value = self._values.get(key) or []
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self._bad(key, value, "a list of texts")
        return value

    def sequence(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers in its order; empty when absent. Raises CorruptFile."""
        value = self._values.get(key)
        value = [] if value is None else list(value) if isinstance(value, (list, tuple)) else value
        if not isinstance(value, list) or not all(isinstance(n, int) and not isinstance(n, bool) for n in value):
            raise self._bad(key, value, "a list of whole numbers")
        return tuple(value)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of `count` finite numbers. Raises CorruptFile."""
        value = self._values.get(key)
        found = list(value) if isinstance(value, (list, tuple)) else []
        if len(found) != count or not all(isinstance(n, (int, float)) and math.isfinite(n) for n in found):
            raise self._bad(key, value, f"a list of {count} numbers")
        return tuple(float(n) for n in found)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean. Raises CorruptFile."""
        value = self._get(key, default)
        if not isinstance(value, (bool, int)):
            raise self._bad(key, value, "true or false")
        return bool(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A string. Raises CorruptFile."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._bad(key, value, "a text")
        return value

    def mapping(self, key: str) -> Fields:
        """A nested mapping; empty when absent. Raises CorruptFile."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self._bad(key, value, "a mapping")
        return Fields(value or {}, f"{self.where}: {key}")

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None:
            if default is None:
                raise CorruptFile(f"{self.where}: {key} is missing", details={"key": key})
            return default
        return value

    def _bad(self, key: str, value: object, wanted: str) -> CorruptFile:
        shown = str(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return CorruptFile(f"{self.where}: {key} is {shown!r}, expected {wanted}", details={"key": key})
