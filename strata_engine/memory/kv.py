"""Keys and values of an attention layer: two arrays [P, K, page_tokens, D] in f16, bf16 or f32, and their bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from strata_engine.errors import UsageError
from strata_kernels.ops import Array, KvLayer

_TYPE_BYTES = {"f16": 2, "bf16": 2, "f32": 4}

Zeros = Callable[..., Array]  # Ops.zeros


@dataclass(frozen=True)
class Room:
    """How much of everything there is: pages, tokens in a page, slots (sequences at once), type of keys and values."""

    pages: int
    page_tokens: int
    slots: int
    kv_type: str


class LayerMemory(Protocol):
    """A kind of memory that one layer keeps; `Model.memory()` has one of these, or None, for each layer."""

    def token_bytes(self, kv_type: str) -> int:
        """Bytes of one token, in pages."""
        ...

    @property
    def slot_bytes(self) -> int:
        """Bytes of one sequence whatever its length, in a slot."""
        ...

    def allocate(self, room: Room, zeros: Zeros) -> Any:
        """What the layer's ops read and write."""
        ...

    def clear(self, cache: Any, pages: Sequence[int], slot: int) -> None:
        """Zero a sequence's pages and slot."""
        ...


@dataclass(frozen=True)
class KvMemory:
    """What an attention layer keeps of each token: a key and a value for each kv head."""

    kv_heads: int
    head_width: int

    @property
    def slot_bytes(self) -> int:
        """Nothing is kept beside the tokens."""
        return 0

    def token_bytes(self, kv_type: str) -> int:
        """Bytes of one token's key and value. Raises UsageError for an unknown type."""
        return 2 * self.kv_heads * self.head_width * type_bytes(kv_type)

    def allocate(self, room: Room, zeros: Zeros) -> KvLayer:
        """Raises MemoryError."""
        shape = (room.pages, self.kv_heads, room.page_tokens, self.head_width)
        return KvLayer(zeros(*shape, dtype=room.kv_type), zeros(*shape, dtype=room.kv_type))

    def clear(self, cache: KvLayer, pages: Sequence[int], slot: int) -> None:
        """Zero the pages."""
        for page in pages:
            cache.keys[page] = 0
            cache.values[page] = 0


def type_bytes(kv_type: str) -> int:
    """Bytes of one element. Raises UsageError naming the known types."""
    try:
        return _TYPE_BYTES[kv_type]
    except KeyError:
        raise UsageError(f"unknown KV type {kv_type!r}", hint=f"one of: {', '.join(_TYPE_BYTES)}") from None
