"""A pool of equal pages: a free list and counters. Knows no tensors.

Every page is either free or taken exactly once; giving back what was not taken is a bug and raises.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class PagePool:
    """Pages 0..total-1. The page given back last is taken first, so a small load touches little memory."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._taken = bytearray(total)

    @property
    def free(self) -> int:
        """Pages that can be taken now."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Pages taken."""
        return self.total - len(self._free)

    def take(self, count: int) -> array[int] | None:
        """`count` pages, or None (and nothing changed) when there are fewer."""
        if count > len(self._free):
            return None
        pages = array("i", (self._free.pop() for _ in range(count)))
        for page in pages:
            self._taken[page] = 1
        return pages

    def give(self, pages: Iterable[int]) -> None:
        """Return pages. Raises ValueError for one that is not taken."""
        for page in pages:
            if not self._taken[page]:
                raise ValueError(f"page {page} given back twice")
            self._taken[page] = 0
            self._free.append(page)

    def faults(self) -> list[str]:
        """What is inconsistent between the free list and the marks; empty when all is well."""
        found = []
        if len(set(self._free)) != len(self._free):
            found.append("a page is twice in the free list")
        if any(self._taken[page] for page in self._free):
            found.append("a taken page is in the free list")
        if sum(self._taken) + len(self._free) != self.total:
            found.append(f"{sum(self._taken)} taken + {len(self._free)} free is not {self.total}")
        return found
