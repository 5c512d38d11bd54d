"""Memory of block-sparse attention (index keys beside keys and values) and of layers with hashed n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strata_engine.config import require_unscaled
from strata_engine.errors import UsageError
from strata_engine.memory.kv import KvMemory, LayerMemory, Room, Saved, Zeros
from strata_kernels.ops import Array, KvLayer
from strata_kernels.ops_streams import IndexLayer


@dataclass(frozen=True)
class IndexedLayer:
    """What an indexed attention layer reads and writes."""

    kv: KvLayer
    index: IndexLayer


@dataclass(frozen=True)
class IndexedMemory:
    """Keys and values, one raw index key of `width` for each token and one for each `block_tokens` of them, f32."""

    kv: KvMemory
    width: int
    block_tokens: int

    @property
    def slot_bytes(self) -> int:
        """Nothing is kept beside the tokens."""
        return 0

    @property
    def draft_bytes(self) -> int:
        """Rows that do not count are written over, and the keys of their blocks with them."""
        return 0

    def token_bytes(self, kv_type: str) -> int:
        """Bytes of one token, its share of a block's key rounded up."""
        return self.kv.token_bytes(kv_type) + 4 * self.width + -(-4 * self.width // self.block_tokens)

    def allocate(self, room: Room, zeros: Zeros) -> IndexedLayer:
        """Raises MemoryError; UsageError for pages or a type that the layer cannot use."""
        if room.page_tokens % self.block_tokens:
            text = f"pages of {room.page_tokens} tokens are not whole blocks of {self.block_tokens} tokens"
            raise UsageError(text, hint=f"use a page size that {self.block_tokens} divides")
        require_unscaled(room.kv_type)
        raw = zeros(room.pages, room.page_tokens, self.width)
        blocks = zeros(room.pages, room.page_tokens // self.block_tokens, self.width)
        return IndexedLayer(self.kv.allocate(room, zeros), IndexLayer(raw, blocks))

    def clear(self, cache: IndexedLayer, pages: Sequence[int], slot: int) -> None:
        """Zero the pages."""
        self.kv.clear(cache.kv, pages, slot)
        for page in pages:
            cache.index.raw[page] = 0
            cache.index.blocks[page] = 0

    def save(self, cache: IndexedLayer, slot: int) -> Saved:
        """Nothing: index keys are shared with their pages."""
        return ()

    def load(self, cache: IndexedLayer, slot: int, saved: Saved) -> None:
        """Nothing."""


@dataclass(frozen=True)
class NgramLayer:
    """`inner`: what the layer's mixer keeps. `conv` f32 [slots, rows, C], `ids` i32 [slots, history], both rings."""

    inner: Any
    conv: Array
    ids: Array


@dataclass(frozen=True)
class NgramMemory:
    """The memory of a layer's mixer, and of the n-gram part before it: past rows of its convolution, past tokens."""

    inner: LayerMemory
    conv_rows: int
    conv_width: int
    history: int

    @property
    def slot_bytes(self) -> int:
        """Bytes of one sequence."""
        return self.inner.slot_bytes + 4 * (self.conv_rows * self.conv_width + self.history)

    @property
    def draft_bytes(self) -> int:
        """A row of each ring, and what the mixer needs."""
        return self.inner.draft_bytes + 4 * (self.conv_width + 1)

    def token_bytes(self, kv_type: str) -> int:
        """Bytes of one token of the mixer."""
        return self.inner.token_bytes(kv_type)

    def allocate(self, room: Room, zeros: Zeros) -> NgramLayer:
        """Raises MemoryError."""
        conv = zeros(room.slots, self.conv_rows + room.drafts, self.conv_width)
        ids = zeros(room.slots, self.history + room.drafts, dtype="i32")
        return NgramLayer(self.inner.allocate(room, zeros), conv, ids)

    def clear(self, cache: NgramLayer, pages: Sequence[int], slot: int) -> None:
        """Zero pages and slot."""
        self.inner.clear(cache.inner, pages, slot)
        cache.conv[slot] = 0
        cache.ids[slot] = 0

    def save(self, cache: NgramLayer, slot: int) -> Saved:
        """Copies of the slot's arrays, those of the mixer behind them."""
        return cache.conv[slot].copy(), cache.ids[slot].copy(), *self.inner.save(cache.inner, slot)

    def load(self, cache: NgramLayer, slot: int, saved: Saved) -> None:
        """Put them back."""
        cache.conv[slot], cache.ids[slot], *inner = saved
        self.inner.load(cache.inner, slot, tuple(inner))
