"""The face of this folder: room for what the layers keep of sequences.

Main flow: admit(sequence, n) makes room for a sequence that holds nothing and shares what the prefix cache knows of it,
reserve(hold, n) makes room for n more tokens, the forward writes them, commit(hold, n) counts them, retire(sequence)
gives all pages and the slot back; the cache keeps the whole ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strata_engine.core.sequence import NO_SLOT, Hold, Sequence
from strata_engine.memory.kv import PerLayer, Room, Zeros
from strata_engine.memory.layers import Layers, allocate, page_bytes, slot_bytes
from strata_engine.memory.pages import PagePool
from strata_engine.memory.prefixes import Counts, Prefixes
from strata_engine.memory.sharing import sharing_faults
from strata_engine.memory.snapshots import Snapshots, most_copies
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
        zeros: Zeros | PerLayer = arrays.zeros,
        max_sequences: int = 1,
        drafts: int = 0,
    ) -> None:
        """`layers`: the target's, then those of drafters; `caches` are in the same order.

        `zeros`: the Ops' maker of arrays. `max_sequences`: state slots, if a layer has a state at all. `drafts`: most
        drafts of a sequence in one step.
        """
        self.page_tokens = page_tokens
        self.drafts = drafts
        self.pool = PagePool(pages, self._dropped)
        self.slot_bytes = slot_bytes(layers, drafts)
        self.slots = PagePool(max_sequences if self.slot_bytes else 0)
        room = Room(pages, page_tokens, self.slots.total, kv_type, drafts)
        self.caches: tuple[Any, ...] = allocate(layers, room, zeros)
        self.page_bytes = page_bytes(layers, page_tokens, kv_type)
        self._layers = tuple(layers)
        self.prefixes: Prefixes | None = None

    def share_prefixes(self, spare_bytes: int | None = None) -> int:
        """From now on sequences share what they begin with, and it is kept after they end. Once, before the first.

        Copies of states, where there are states, take no more than `spare_bytes` (None: no limit); how many there may
        be. Where there is no room for any, nothing is shared.
        """
        if not self.recurrent:
            self.prefixes = Prefixes(self.pool, self.page_tokens)
            return 0
        most = most_copies(self.slots.total)
        if spare_bytes is not None:
            most = min(most, max(0, spare_bytes) // self.slot_bytes)
        if most:
            copies = Snapshots(self._layers, self.caches, most)
            self.prefixes = Prefixes(self.pool, self.page_tokens, copies)
        return most

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

    @property
    def prefix_counts(self) -> Counts:
        """Tokens looked up in the prefix cache and found there; zeros without one."""
        return self.prefixes.counts if self.prefixes else Counts()

    @property
    def kept_bytes(self) -> int:
        """Bytes of pages that the prefix cache alone keeps; they are free for whoever needs them."""
        return self.pool.idle * self.page_bytes

    @property
    def copied_bytes(self) -> int:
        """Bytes of copies of states that the prefix cache keeps beside the slots."""
        copies = self.prefixes.snapshots if self.prefixes else None
        return len(copies) * self.slot_bytes if copies else 0

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

    def admit(self, sequence: Sequence, tokens: int) -> bool:
        """Make room for the first `tokens` tokens of a sequence that holds nothing; those that are known count at once.

        False: no room, nothing changed.
        """
        hold, prefixes = sequence.hold, self.prefixes
        if prefixes is None:
            return self.reserve(hold, tokens)
        found = prefixes.find(sequence)
        idle = sum(self.pool.is_idle(node.page) for node in found.path)
        if self.pages_for(tokens) - len(found.path) > self.pool.free - idle:
            return False
        if self.recurrent and not self.slots.free:
            return False
        prefixes.share(hold, found)
        if not self.reserve(hold, tokens - hold.tokens):
            raise CacheCorrupt(f"{self.pool.free} pages are free, but room for {tokens} tokens was not found")
        prefixes.load(hold, found)
        prefixes.count(sequence, sequence.prompt_tokens)
        return True

    def catch_up(self, sequence: Sequence) -> None:
        """Share what became known since a sequence was admitted, unless rows of its own have run."""
        hold, prefixes = sequence.hold, self.prefixes
        if prefixes is None or hold.tokens != hold.shared:
            return
        found = prefixes.find(sequence)
        if len(found.path) * self.page_tokens > hold.tokens:
            prefixes.share(hold, found)
            prefixes.load(hold, found)
            prefixes.count(sequence)

    def awaits(self, sequence: Sequence, other: Sequence) -> bool:
        """Is a prompt not begun, and does it pay to let `other` read the common part of both first?"""
        hold, prefixes = sequence.hold, self.prefixes
        return prefixes is not None and hold.tokens == hold.shared and prefixes.worth_waiting(sequence, other)

    def enter(self, sequence: Sequence) -> None:
        """Let others share the prompt of a sequence that has read it and goes on. Does something once."""
        hold = sequence.hold
        if self.prefixes is not None and sequence.generated and hold.entered < sequence.prompt_tokens:
            self.prefixes.enter(sequence)
            hold.entered = hold.tokens

    def commit(self, hold: Hold, tokens: int, keep: int | None = None) -> None:
        """The next `tokens` tokens are written, and count. Rows after them were drafts that do not stand.

        `keep`: how many of them were certain when they ran (Span.keep); None: all. Raises CacheCorrupt beyond the
        reserved room (a bug).
        """
        if self.pages_for(hold.tokens + tokens) > len(hold.pages):
            raise CacheCorrupt(f"{hold.tokens} + {tokens} tokens committed into {len(hold.pages)} pages")
        if self.recurrent and keep is not None and tokens - keep > self.drafts:
            raise CacheCorrupt(f"{tokens - keep} drafts committed where a state keeps the inputs of {self.drafts}")
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

    def until(self, hold: Hold, tokens: int) -> int:
        """How many of the next `tokens` tokens of a prompt may run in one step: a copy of the state may be wanted."""
        return min([tokens, *(mark - hold.tokens for mark in hold.marks if mark > hold.tokens)])

    def settle(self, sequence: Sequence) -> None:
        """Rows of a sequence were committed: keep a copy of its state if one is wanted just here."""
        if self.prefixes is not None:
            self.prefixes.copy_state(sequence)

    def retire(self, sequence: Sequence, keep: bool = True) -> None:
        """Release what a sequence holds; unless `keep` is False the cache knows its whole pages from now on."""
        if self.prefixes is None or not keep:
            self.release(sequence.hold)
            return
        path = self.prefixes.enter(sequence)
        self.release(sequence.hold)
        self.prefixes.touch(path)

    def release(self, hold: Hold) -> None:
        """Give all pages and the slot back; the hold is empty and may be used again."""
        self.pool.give(hold.pages)
        if self.prefixes is not None:
            self.prefixes.leave(hold)
        del hold.pages[:]
        if hold.slot != NO_SLOT:
            self.slots.give([hold.slot])
            hold.slot = NO_SLOT
        hold.tokens = hold.fold = hold.shared = hold.copied = hold.entered = 0
        hold.marks, hold.drafted = (), {}

    def clear(self, sequence: Sequence) -> None:
        """Zero what a sequence alone holds, and forget what it read: its values were not finite.

        Pages that others hold, too, stay: who reads a value that is not finite fails and comes here as well.
        """
        hold = sequence.hold
        if self.prefixes is not None:
            self.prefixes.forget(sequence)
        own = [page for page in hold.pages if self.pool.holders(page) == 1]
        for layer, cache in zip(self._layers, self.caches, strict=True):
            if layer is not None:
                layer.clear(cache, own, hold.slot)

    def _dropped(self, page: int) -> None:
        if self.prefixes is not None:
            self.prefixes.dropped(page)

    def check(self, holds: Iterable[Hold]) -> None:
        """Compare the pools with the holds that exist. Raises CacheCorrupt naming every fault."""
        found = [*self.pool.faults(), *(f"slots: {fault}" for fault in self.slots.faults())]
        slots: list[int] = []
        holds = list(holds)
        found += sharing_faults(holds, self.pool, self.page_tokens)
        found += self.prefixes.faults() if self.prefixes else []
        for hold in holds:
            slots += [hold.slot] if hold.slot != NO_SLOT else []
            if self.pages_for(hold.tokens) > len(hold.pages):
                found.append(f"{hold.tokens} tokens in {len(hold.pages)} pages")
            if self.recurrent and hold.pages and hold.slot == NO_SLOT:
                found.append("a sequence has pages but no state slot")
        if len(set(slots)) != len(slots):
            found.append("a slot is held twice")
        if len(slots) != self.slots.used:
            found.append(f"{self.slots.used} slots are taken, {len(slots)} are held")
        if found:
            raise CacheCorrupt("; ".join(found))
