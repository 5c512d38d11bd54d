"""A pool of equal pages: who holds each, which are free, which are kept for reuse. Knows no tensors.

A page is free (nothing in it counts), held by one sequence or by several that share it, or idle: nobody holds it, but
its contents are kept because a prefix may be asked for again. Idle pages are free for whoever needs pages: the one used
longest ago goes first. Giving back what is not held is a bug and raises.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence


def _nobody(page: int) -> None:
    """Without a cache no page is idle, so none is dropped."""


class PagePool:
    """Pages 0..total-1. The free page given back last is taken first, so a small load touches little memory."""

    def __init__(self, total: int, dropped: Callable[[int], None] = _nobody) -> None:
        """`dropped` is told of an idle page whose contents are given up; it may `forget` others meanwhile."""
        self.total = total
        self._dropped = dropped
        self._free = list(range(total - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # used longest ago first
        self._holders = array("i", bytes(4 * total))
        self._kept = bytearray(total)

    @property
    def free(self) -> int:
        """Pages that can be taken now, idle ones included."""
        return len(self._free) + len(self._idle)

    @property
    def used(self) -> int:
        """Pages that somebody holds, each counted once."""
        return self.total - self.free

    @property
    def idle(self) -> int:
        """Pages that are kept and held by nobody."""
        return len(self._idle)

    def holders(self, page: int) -> int:
        """How many hold the page."""
        return self._holders[page]

    def is_idle(self, page: int) -> bool:
        """Is it kept and held by nobody?"""
        return page in self._idle

    def is_kept(self, page: int) -> bool:
        """Do its contents stay when nobody holds it?"""
        return bool(self._kept[page])

    def take(self, count: int) -> array[int] | None:
        """`count` pages, or None (and nothing changed) when there are fewer."""
        if count > self.free:
            return None
        pages = array("i")
        for _ in range(count):
            if not self._free:
                self._drop_oldest()
            page = self._free.pop()
            self._holders[page] = 1
            pages.append(page)
        return pages

    def _drop_oldest(self) -> None:
        page, _ = self._idle.popitem(last=False)
        self._kept[page] = 0
        self._free.append(page)
        self._dropped(page)

    def share(self, pages: Iterable[int]) -> None:
        """One holder more of each page, which is held or idle. Raises ValueError for a free one."""
        for page in pages:
            if not self._holders[page] and page not in self._idle:
                raise ValueError(f"page {page} is free, nobody can share it")
            self._idle.pop(page, None)
            self._holders[page] += 1

    def give(self, pages: Sequence[int]) -> None:
        """One holder less of each, the last page first: a prefix outlives what follows it. Raises ValueError."""
        for page in reversed(pages):
            if not self._holders[page]:
                raise ValueError(f"page {page} given back twice")
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if self._kept[page]:
                self._idle[page] = None
            else:
                self._free.append(page)

    def keep(self, page: int) -> None:
        """Once nobody holds the page it becomes idle, not free. Raises ValueError for one that nobody holds."""
        if not self._holders[page]:
            raise ValueError(f"page {page} is held by nobody, its contents do not count")
        self._kept[page] = 1

    def forget(self, page: int) -> None:
        """The contents need not be kept any longer. Does nothing to a page that is not kept."""
        self._kept[page] = 0
        if page in self._idle:
            del self._idle[page]
            self._free.append(page)

    def touch(self, page: int) -> None:
        """An idle page was used just now."""
        if page in self._idle:
            self._idle.move_to_end(page)

    def faults(self) -> list[str]:
        """What is inconsistent between the lists and the marks; empty when all is well."""
        found = []
        if len(set(self._free)) != len(self._free):
            found.append("a page is twice in the free list")
        if any(self._holders[page] for page in (*self._free, *self._idle)):
            found.append("a held page is in the free list")
        if any(self._kept[page] for page in self._free) or not all(self._kept[page] for page in self._idle):
            found.append("a page is kept and free, or idle and not kept")
        held = sum(1 for count in self._holders if count > 0)
        if held + len(self._free) + len(self._idle) != self.total or min(self._holders, default=0) < 0:
            found.append(f"{held} held + {len(self._free)} free + {len(self._idle)} idle is not {self.total}")
        return found
