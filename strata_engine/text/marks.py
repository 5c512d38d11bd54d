"""Which control tokens in a rendered prompt the template wrote, and which only stand in message text.

A second rendering of the same conversation carries a mark inside every spelling that message text contains. The
spellings of both come in the same order, so each one in the real prompt is known to be the template's or a message's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from strata_engine.text.reasoning import CLOSE, OPEN
from strata_engine.text.specials import Specials

_PRIVATE = range(0xF8FF, 0xE000, -1)


@dataclass(frozen=True)
class Found:
    """A spelling at an offset of a prompt. `plain`: it is message text and must not become a token."""

    start: int
    spelling: str
    plain: bool = False


@dataclass(frozen=True)
class Marker:
    """Marks and finds spellings of one vocabulary. Thinking tags are watched even where the vocabulary lacks them."""

    specials: Specials

    @cached_property
    def _watched(self) -> Mapping[str, int]:
        return {**self.specials.control, **self.specials.tags, OPEN: 0, CLOSE: 0}

    @cached_property
    def _foreign(self) -> re.Pattern[str]:
        return _any(self._watched)

    @cached_property
    def _own(self) -> re.Pattern[str] | None:
        return _any(self.specials.control) if self.specials.control else None

    def needed(self, values: Any) -> bool:
        """True if any text in these values spells a control token or a tag."""
        return any(self._foreign.search(text) for text in leaves(values))

    def mark(self, values: Any, mark: str, own: bool = False) -> Any:
        """The values with the mark inside every spelling. `own`: the model said it, so its tags stay real."""
        pattern = self._own if own else self._foreign
        if pattern is None:
            return values
        return _map(values, lambda text: pattern.sub(lambda m: m[0][0] + mark + m[0][1:], text))

    def find(self, text: str, mark: str = "") -> list[Found]:
        """Every spelling in order; with a mark, those that carry it are plain. Offsets count without marks."""
        if not mark:
            return [Found(m.start(), m[0]) for m in self._foreign.finditer(text)]
        found: list[Found] = []
        marks = 0
        for match in _any(self._watched, mark).finditer(text):
            found.append(Found(match.start() - marks, match[0].replace(mark, ""), mark in match[0]))
            marks += mark in match[0]
        return found


def unused_mark(*texts: str) -> str:
    """A private-use character that none of the texts contains."""
    used = set().union(*texts)
    return next(chr(code) for code in _PRIVATE if chr(code) not in used)


def leaves(values: Any) -> Iterable[str]:
    """Every string in nested lists and mappings, keys included."""
    if isinstance(values, str):
        yield values
    elif isinstance(values, Mapping):
        for key, value in values.items():
            yield from leaves(key)
            yield from leaves(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from leaves(value)


def transfer(real: list[Found], marked: list[Found]) -> list[Found] | None:
    """The spellings of the real prompt with what the marked one knows; None if the two do not correspond."""
    if [f.spelling for f in real] != [f.spelling for f in marked]:
        return None
    return [Found(r.start, r.spelling, m.plain) for r, m in zip(real, marked, strict=True)]


def _map(values: Any, change: Callable[[str], str]) -> Any:
    if isinstance(values, str):
        return change(values)
    if isinstance(values, Mapping):
        return {_map(k, change): _map(v, change) for k, v in values.items()}
    if isinstance(values, list | tuple):
        return [_map(v, change) for v in values]
    return values


def _any(spellings: Mapping[str, int], mark: str = "") -> re.Pattern[str]:
    optional = f"{mark}?" if mark else ""
    ordered = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(re.escape(s[0]) + optional + re.escape(s[1:]) for s in ordered))
