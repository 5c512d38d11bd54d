"""Feature rows that a drafter's own layers have not read yet, copied for each sequence.

A drafter reads them when it next proposes, so one that is parked costs a copy of a row a token and may come back at any
time. Main flow: add(sequence, start, rows) after each step, take(sequence, count) hands the oldest rows out, which then
count as read; `complete` says whether the drafter knows all that the target knows.

Rows can be missing: a prefix came from the cache without them. They cannot be made again without the target, so the
drafter's context then begins behind the gap, at the next page (`base`), as if the sequence had begun there: its rows
stand at positions counted from `base`, in the pages from there on. Rotations are relative, so that is a shorter
context and nothing else. One missing row is let pass where all before it are known: at the end of a cached prefix the
row of a drafter that looks one token ahead may have seen another token. Such a slot costs a little of the guesses'
quality and never anything of the answer, which the target alone decides.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from strata_engine.core.sequence import Sequence

Features = NDArray[np.float32]


@dataclass(frozen=True)
class Feed:
    """Rows to read: `rows` [n, F] in pieces, of positions start, start + 1, .. of a sequence; `base` as above."""

    sequence: Sequence
    base: int
    start: int
    rows: tuple[Features, ...]

    @property
    def count(self) -> int:
        """n."""
        return sum(map(len, self.rows))

    def pages(self, page_tokens: int) -> array[int]:
        """The sequence's pages from `base` on, which the drafter's positions count from."""
        return self.sequence.hold.pages[self.base // page_tokens :]

    def copy_to(self, out: Features) -> None:
        """out[:n] = rows."""
        at = 0
        for part in self.rows:
            out[at : at + len(part)] = part
            at += len(part)


@dataclass(eq=False)
class _Line:
    """One sequence: rows base..read-1 are in the drafter's layers, read..end-1 wait in `parts`."""

    base: int
    read: int
    end: int
    parts: deque[Features] = field(default_factory=deque)
    last: Features | None = None  # the row read last, for reading it again

    @property
    def unread(self) -> int:
        return self.end - self.read


class Backlog:
    """Rows of `width` for the sequences of one drafter. Not thread-safe: the engine's thread is the only user."""

    def __init__(self, width: int, page_tokens: int, name: str = "") -> None:
        """`name`: of the drafter, whose rows the sequences' holds and the prefix cache know by it."""
        self.width, self._name = width, name
        self._page_tokens = page_tokens
        self._lines: dict[str, _Line] = {}

    def add(self, sequence: Sequence, start: int, rows: Features) -> None:
        """Copy rows [n, F] of positions start, start + 1, ..; rows that came before are replaced.

        Raises ValueError for rows of another width.
        """
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise ValueError(f"feature rows of shape {rows.shape}, expected [n, {self.width}]")
        line = self._lines.get(sequence.id)
        if line is None:
            line = self._lines[sequence.id] = self._begin(sequence, start)
        if start > line.end:  # also never after a drafter's own mistake: better a short context than a wrong one
            line.base = line.read = line.end = self._next_page(start)
            line.parts.clear()
        elif start < line.end:
            self._drop(line, start)
        skipped = max(0, line.end - start)
        if skipped < len(rows):
            line.parts.append(rows[skipped:].copy())
            line.end = start + len(rows)

    def unread(self, sequence: Sequence) -> int:
        """Rows that wait."""
        line = self._lines.get(sequence.id)
        return 0 if line is None else line.unread

    def complete(self, sequence: Sequence) -> bool:
        """Are the rows of all computed tokens here or read, from `base` on, at least one?"""
        line = self._lines.get(sequence.id)
        return line is not None and line.base < line.end == sequence.hold.tokens

    def place(self, sequence: Sequence) -> tuple[int, array[int]]:
        """`base` of a sequence that has rows here, and the pages that its rows' positions count from."""
        base = self._lines[sequence.id].base
        return base, sequence.hold.pages[base // self._page_tokens :]

    def next_unread(self, sequence: Sequence) -> int:
        """Position of the oldest waiting row, or where it would stand."""
        return self._lines[sequence.id].read

    def take(self, sequence: Sequence, count: int | None = None) -> Feed:
        """The oldest `count` waiting rows (None: all), which count as read. With none waiting the last one again."""
        line = self._lines[sequence.id]
        if not line.unread and line.last is not None:
            return Feed(sequence, line.base, line.read - 1, (line.last,))
        left = line.unread if count is None else min(count, line.unread)
        start, parts = line.read, []
        while left:
            part = line.parts.popleft()
            if len(part) > left:
                line.parts.appendleft(part[left:])
                part = part[:left]
            parts.append(part)
            left -= len(part)
            line.read += len(part)
            line.last = part[-1:]
        # rows that stand at other positions than their own are of no use to whoever shares the pages
        sequence.hold.drafted[self._name] = 0 if line.base else line.read
        return Feed(sequence, line.base, start, tuple(parts))

    def forget(self, sequence_id: str) -> None:
        """Drop a sequence's rows."""
        self._lines.pop(sequence_id, None)

    def _begin(self, sequence: Sequence, start: int) -> _Line:
        known = sequence.hold.drafted.get(self._name, 0)
        if start <= known or start == known + 1 > 1:
            return _Line(0, start, start)
        base = self._next_page(start)
        return _Line(base, base, base)

    def _next_page(self, position: int) -> int:
        return -(-position // self._page_tokens) * self._page_tokens

    @staticmethod
    def _drop(line: _Line, start: int) -> None:
        """Forget the rows from `start` on."""
        line.end = max(start, line.base)
        if line.end <= line.read:
            line.read, line.last = line.end, None
            line.parts.clear()
        while line.parts and line.unread < sum(map(len, line.parts)):
            surplus = sum(map(len, line.parts)) - line.unread
            part = line.parts.pop()
            if surplus < len(part):
                line.parts.append(part[: len(part) - surplus])
