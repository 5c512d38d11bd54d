"""Key and value layout: per layer two arrays [P, K, page_tokens, D] in f16, bf16 or f32, and their sizes in bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata_engine.errors import OutOfMemory, UsageError
from strata_engine.units import format_bytes
from strata_kernels import arrays
from strata_kernels.ops import Array, KvLayer

_TYPE_BYTES = {"f16": 2, "bf16": 2, "f32": 4}

Zeros = Callable[..., Array]  # Ops.zeros


@dataclass(frozen=True)
class LayerMemory:
    """What one layer keeps of each token: a key and a value for each kv head."""

    kv_heads: int
    head_width: int

    def token_bytes(self, kv_type: str) -> int:
        """Bytes of one token's key and value."""
        return 2 * self.kv_heads * self.head_width * _type_bytes(kv_type)


def _type_bytes(kv_type: str) -> int:
    try:
        return _TYPE_BYTES[kv_type]
    except KeyError:
        raise UsageError(f"unknown KV type {kv_type!r}", hint=f"one of: {', '.join(_TYPE_BYTES)}") from None


def page_bytes(layers: Sequence[LayerMemory], page_tokens: int, kv_type: str) -> int:
    """Bytes of one page over all layers. Raises UsageError for an unknown type."""
    return page_tokens * sum(layer.token_bytes(kv_type) for layer in layers)


def allocate(
    layers: Sequence[LayerMemory], pages: int, page_tokens: int, kv_type: str, zeros: Zeros = arrays.zeros
) -> tuple[KvLayer, ...]:
    """Caches of `pages` pages, made by `zeros` of the ops. Raises OutOfMemory with the numbers, UsageError: no type."""
    _type_bytes(kv_type)

    def cache(layer: LayerMemory) -> Array:
        return zeros(pages, layer.kv_heads, page_tokens, layer.head_width, dtype=kv_type)

    try:
        return tuple(KvLayer(cache(layer), cache(layer)) for layer in layers)
    except MemoryError as error:
        wanted = pages * page_bytes(layers, page_tokens, kv_type)
        text = f"{format_bytes(wanted)} for {pages * page_tokens} tokens of keys and values could not be allocated"
        raise OutOfMemory(text, hint="lower the context (--ctx) or the number of sequences (--parallel)") from error
