"""Which bytes of a file are there: sorted, merged half-open ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class Ranges:
    """A set of byte positions as [start, end) pairs. Not thread safe: the owner locks."""

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in pairs:
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        """Include [start, end)."""
        if end <= start:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def pairs(self) -> list[tuple[int, int]]:
        """The ranges, ascending."""
        return list(zip(self._starts, self._ends, strict=True))

    @property
    def total(self) -> int:
        """How many bytes are included."""
        return sum(self._ends) - sum(self._starts)

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """The gaps inside [start, end)."""
        gaps: list[tuple[int, int]] = []
        for have_start, have_end in zip(self._starts, self._ends, strict=True):
            if have_end <= start:
                continue
            if have_start >= end:
                break
            if have_start > start:
                gaps.append((start, have_start))
            start = max(start, have_end)
        if start < end:
            gaps.append((start, end))
        return gaps
