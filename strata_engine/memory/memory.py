"""The face of this folder: room for the keys and values of sequences.

Main flow: reserve(hold, n) makes room for n more tokens, the forward writes them, commit(hold, n) counts them, release
gives all pages back. A prefix shared between sequences would enter as pages put into a fresh Hold before reserve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strata_engine.core.sequence import Hold
from strata_engine.memory.kv import LayerMemory, Zeros, allocate, page_bytes
from strata_engine.memory.pages import PagePool
from strata_kernels import arrays
from strata_kernels.ops import KvLayer


class CacheCorrupt(RuntimeError):
    """Pages were lost or shared: a bug of ours."""


class Memory:
    """Paged key/value caches of one engine. Not thread-safe: the engine's thread is the only user."""

    def __init__(
        self, layers: Sequence[LayerMemory], pages: int, page_tokens: int, kv_type: str, zeros: Zeros = arrays.zeros
    ) -> None:
        """`zeros`: the Ops' maker of arrays, since its kernels read and write them."""
        self.page_tokens = page_tokens
        self.pool = PagePool(pages)
        self.caches: tuple[KvLayer, ...] = allocate(layers, pages, page_tokens, kv_type, zeros)
        self.page_bytes = page_bytes(layers, page_tokens, kv_type)

    @property
    def total_bytes(self) -> int:
        """Bytes of all pages, used or not."""
        return self.pool.total * self.page_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages that sequences hold now."""
        return self.pool.used * self.page_bytes

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens fill or begin."""
        return -(-tokens // self.page_tokens)

    def reserve(self, hold: Hold, tokens: int) -> bool:
        """Make room for `tokens` tokens after the committed ones. False: no room, nothing changed."""
        missing = self.pages_for(hold.tokens + tokens) - len(hold.pages)
        if missing <= 0:
            return True
        pages = self.pool.take(missing)
        if pages is None:
            return False
        hold.pages.extend(pages)
        return True

    def commit(self, hold: Hold, tokens: int) -> None:
        """The next `tokens` tokens are written. Raises CacheCorrupt beyond the reserved room (a bug)."""
        if self.pages_for(hold.tokens + tokens) > len(hold.pages):
            raise CacheCorrupt(f"{hold.tokens} + {tokens} tokens committed into {len(hold.pages)} pages")
        hold.tokens += tokens

    def release(self, hold: Hold) -> None:
        """Give all pages back; the hold is empty and may be used again."""
        self.pool.give(hold.pages)
        del hold.pages[:]
        hold.tokens = 0

    def clear(self, hold: Hold) -> None:
        """Zero the hold's pages: after a sequence whose values were not finite, before anyone reuses them."""
        for cache in self.caches:
            for page in hold.pages:
                cache.keys[page] = 0
                cache.values[page] = 0

    def check(self, holds: Iterable[Hold]) -> None:
        """Compare the pool with the holds that exist. Raises CacheCorrupt naming every fault."""
        found = self.pool.faults()
        pages: list[int] = []
        for hold in holds:
            pages.extend(hold.pages)
            if self.pages_for(hold.tokens) > len(hold.pages):
                found.append(f"{hold.tokens} tokens in {len(hold.pages)} pages")
        if len(set(pages)) != len(pages):
            found.append("a page is held twice")
        if len(pages) != self.pool.used:
            found.append(f"{self.pool.used} pages are taken, {len(pages)} are held")
        if found:
            raise CacheCorrupt("; ".join(found))
