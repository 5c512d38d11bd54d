"""Keys and values of an attention layer: two arrays [P, K, page_tokens, D], scales of int8 ones, and their bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from strata_engine.config import kv_pair, kv_token_bytes
from strata_kernels.ops import Array, KvLayer, value_row_bytes

Zeros = Callable[..., Array]  # Ops.zeros
Saved = tuple[Array, ...]


@dataclass(frozen=True)
class PerLayer:
    """Makers of arrays where layers keep their memory in different places: `of(layer)`, counted from 0."""

    of: Callable[[int], Zeros]


@dataclass(frozen=True)
class Room:
    """How much of everything there is: pages, tokens in a page, slots (sequences at once), type of keys and values.

    `drafts`: most drafts of a sequence in one step; a recurrent layer keeps the inputs of as many rows. 0: none.
    """

    pages: int
    page_tokens: int
    slots: int
    kv_type: str
    drafts: int = 0


class LayerMemory(Protocol):
    """A kind of memory that one layer keeps; `Model.memory()` has one of these, or None, for each layer."""

    def token_bytes(self, kv_type: str) -> int:
        """Bytes of one token, in pages."""
        ...

    @property
    def slot_bytes(self) -> int:
        """Bytes of one sequence whatever its length, in a slot."""
        ...

    @property
    def draft_bytes(self) -> int:
        """Bytes that a slot needs more for each draft of a step; 0 where drafts only take pages."""
        ...

    def allocate(self, room: Room, zeros: Zeros) -> Any:
        """What the layer's ops read and write."""
        ...

    def clear(self, cache: Any, pages: Sequence[int], slot: int) -> None:
        """Zero a sequence's pages and slot."""
        ...

    def save(self, cache: Any, slot: int) -> Saved:
        """A copy of what is in the slot; empty where nothing is."""
        ...

    def load(self, cache: Any, slot: int, saved: Saved) -> None:
        """Put a copy that `save` made into a slot."""
        ...


def _side(kind: str, shape: tuple[int, int, int, int], zeros: Zeros) -> Array:
    if kind == "q4":
        return zeros(*shape[:3], value_row_bytes(shape[3]), dtype="u8")
    return zeros(*shape, dtype="i8" if kind == "int8" else kind)


@dataclass(frozen=True)
class KvMemory:
    """What an attention layer keeps of each token: a key and a value for each kv head."""

    kv_heads: int
    head_width: int

    @property
    def slot_bytes(self) -> int:
        """Nothing is kept beside the tokens."""
        return 0

    @property
    def draft_bytes(self) -> int:
        """Rows that do not count are written over."""
        return 0

    def token_bytes(self, kv_type: str) -> int:
        """Bytes of one token's key and value. Raises UsageError for an unknown type."""
        return kv_token_bytes(kv_type, self.kv_heads * self.head_width, self.kv_heads)

    def allocate(self, room: Room, zeros: Zeros) -> KvLayer:
        """Raises MemoryError."""
        shape = (room.pages, self.kv_heads, room.page_tokens, self.head_width)
        kinds = kv_pair(room.kv_type)
        keys, values = (_side(kind, shape, zeros) for kind in kinds)
        key_scales, value_scales = (zeros(*shape[:3]) if kind == "int8" else None for kind in kinds)
        return KvLayer(keys, values, key_scales, value_scales)

    def clear(self, cache: KvLayer, pages: Sequence[int], slot: int) -> None:
        """Zero the pages."""
        for array in (cache.keys, cache.values, cache.key_scales, cache.value_scales):
            if array is not None:
                for page in pages:
                    array[page] = 0

    def save(self, cache: KvLayer, slot: int) -> Saved:
        """Nothing: keys and values are shared with their pages."""
        return ()

    def load(self, cache: KvLayer, slot: int, saved: Saved) -> None:
        """Nothing."""
