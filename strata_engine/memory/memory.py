"""The face of this folder: room for what the layers keep of sequences.

Main flow: reserve(hold, n) makes room for n more tokens, the forward writes them, commit(hold, n) counts them, release
gives all pages and the slot back. A prefix shared between sequences would enter as pages put into a fresh Hold before
reserve; a model with recurrent state would need a copy of the state at that place, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strata_engine.core.sequence import NO_SLOT, Hold
from strata_engine.memory.kv import Room, Zeros
from strata_engine.memory.layers import Layers, allocate, page_bytes, slot_bytes
from strata_engine.memory.pages import PagePool
from strata_kernels import arrays


class CacheCorrupt(RuntimeError):
    """Pages or slots were lost or shared: a bug of ours."""


class Memory:
    """Paged caches and state slots of one engine. Not thread-safe: the engine's thread is the only user."""

    def __init__(
        self,
        layers: Layers,
        pages: int,
        page_tokens: int,
        kv_type: str,
        zeros: Zeros = arrays.zeros,
        max_sequences: int = 1,
        drafts: int = 0,
    ) -> None:
        """`layers`: the target's, then those of drafters; `caches` are in the same order.

        `zeros`: the Ops' maker of arrays. `max_sequences`: state slots, if a layer has a state at all. `drafts`: most
        drafts of a sequence in one step.
        """
        self.page_tokens = page_tokens
        self.pool = PagePool(pages)
        self.slot_bytes = slot_bytes(layers)
        self.slots = PagePool(max_sequences if self.slot_bytes else 0)
        room = Room(pages, page_tokens, self.slots.total, kv_type, drafts)
        self.caches: tuple[Any, ...] = allocate(layers, room, zeros)
        self.page_bytes = page_bytes(layers, page_tokens, kv_type)
        self._layers = tuple(layers)

    @property
    def recurrent(self) -> bool:
        """Does a layer keep a state? Then rows that ran once must not run again without all rows before them."""
        return self.slot_bytes > 0

    @property
    def state_bytes(self) -> int:
        """Bytes of all state slots, used or not."""
        return self.slots.total * self.slot_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of all pages and slots, used or not."""
        return self.pool.total * self.page_bytes + self.slots.total * self.slot_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages and slots that sequences hold now."""
        return self.pool.used * self.page_bytes + self.slots.used * self.slot_bytes

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens fill or begin."""
        return -(-tokens // self.page_tokens)

    def reserve(self, hold: Hold, tokens: int) -> bool:
        """Make room for `tokens` tokens after the committed ones. False: no room, nothing changed."""
        needs_slot = self.recurrent and hold.slot == NO_SLOT
        if needs_slot and not self.slots.free:
            return False
        missing = self.pages_for(hold.tokens + tokens) - len(hold.pages)
        if missing > 0:
            pages = self.pool.take(missing)
            if pages is None:
                return False
            hold.pages.extend(pages)
        if needs_slot:
            taken = self.slots.take(1)
            assert taken is not None
            hold.slot = taken[0]
        return True

    def commit(self, hold: Hold, tokens: int, keep: int | None = None) -> None:
        """The next `tokens` tokens are written, and count. Rows after them were drafts that do not stand.

        `keep`: how many of them were certain when they ran (Span.keep); None: all. Raises CacheCorrupt beyond the
        reserved room (a bug).
        """
        if self.pages_for(hold.tokens + tokens) > len(hold.pages):
            raise CacheCorrupt(f"{hold.tokens} + {tokens} tokens committed into {len(hold.pages)} pages")
        hold.tokens += tokens
        hold.fold = tokens - keep if self.recurrent and keep is not None else 0

    def unfold(self, hold: Hold) -> None:
        """All committed rows are about to run again, as certain ones: nothing is left to fold in."""
        hold.fold = 0

    def trim(self, hold: Hold) -> None:
        """Give back the pages that the next token does not need: room for drafts is nobody's for longer than a step."""
        needed = self.pages_for(hold.tokens + 1)
        self.pool.give(hold.pages[needed:])
        del hold.pages[needed:]

    def release(self, hold: Hold) -> None:
        """Give all pages and the slot back; the hold is empty and may be used again."""
        self.pool.give(hold.pages)
        del hold.pages[:]
        if hold.slot != NO_SLOT:
            self.slots.give([hold.slot])
            hold.slot = NO_SLOT
        hold.tokens = hold.fold = hold.drafted = 0

    def clear(self, hold: Hold) -> None:
        """Zero what the hold has: after a sequence whose values were not finite, before anyone reuses it."""
        for layer, cache in zip(self._layers, self.caches, strict=True):
            if layer is not None:
                layer.clear(cache, hold.pages, hold.slot)

    def check(self, holds: Iterable[Hold]) -> None:
        """Compare the pools with the holds that exist. Raises CacheCorrupt naming every fault."""
        found = [*self.pool.faults(), *(f"slots: {fault}" for fault in self.slots.faults())]
        pages: list[int] = []
        slots: list[int] = []
        for hold in holds:
            pages.extend(hold.pages)
            slots += [hold.slot] if hold.slot != NO_SLOT else []
            if self.pages_for(hold.tokens) > len(hold.pages):
                found.append(f"{hold.tokens} tokens in {len(hold.pages)} pages")
            if self.recurrent and hold.pages and hold.slot == NO_SLOT:
                found.append("a sequence has pages but no state slot")
        for name, held, pool in (("page", pages, self.pool), ("slot", slots, self.slots)):
            if len(set(held)) != len(held):
                found.append(f"a {name} is held twice")
            if len(held) != pool.used:
                found.append(f"{pool.used} {name}s are taken, {len(held)} are held")
        if found:
            raise CacheCorrupt("; ".join(found))
