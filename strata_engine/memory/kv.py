"""Key and value layout: per layer two tensors [P, K, page_tokens, D] in f16, bf16 or f32, and their sizes in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from strata_engine.errors import OutOfMemory, UsageError
from strata_engine.units import format_bytes
from strata_kernels.ops import KvLayer

# numpy type of the same width (numpy has no bf16) and torch type
_TYPES = {
    "f16": (np.dtype(np.int16), torch.float16),
    "bf16": (np.dtype(np.int16), torch.bfloat16),
    "f32": (np.dtype(np.int32), torch.float32),
}


@dataclass(frozen=True)
class LayerMemory:
    """What one layer keeps of each token: a key and a value for each kv head."""

    kv_heads: int
    head_width: int

    def token_bytes(self, kv_type: str) -> int:
        """Bytes of one token's key and value."""
        return 2 * self.kv_heads * self.head_width * _types(kv_type)[0].itemsize


def _types(kv_type: str) -> tuple[np.dtype[np.signedinteger], torch.dtype]:
    try:
        return _TYPES[kv_type]
    except KeyError:
        raise UsageError(f"unknown KV type {kv_type!r}", hint=f"one of: {', '.join(_TYPES)}") from None


def page_bytes(layers: Sequence[LayerMemory], page_tokens: int, kv_type: str) -> int:
    """Bytes of one page over all layers. Raises UsageError for an unknown type."""
    return page_tokens * sum(layer.token_bytes(kv_type) for layer in layers)


def allocate(layers: Sequence[LayerMemory], pages: int, page_tokens: int, kv_type: str) -> tuple[KvLayer, ...]:
    """Zeroed caches of `pages` pages. Raises OutOfMemory with the numbers.

    numpy's zeros come from the system as untouched zero pages: memory is used when a page is first written, not here.
    """
    plain, dtype = _types(kv_type)

    def zeros(layer: LayerMemory) -> torch.Tensor:
        shape = (pages, layer.kv_heads, page_tokens, layer.head_width)
        return torch.from_numpy(np.zeros(shape, plain)).view(dtype)

    try:
        return tuple(KvLayer(zeros(layer), zeros(layer)) for layer in layers)
    except MemoryError as error:
        wanted = pages * page_bytes(layers, page_tokens, kv_type)
        text = f"{format_bytes(wanted)} for {pages * page_tokens} tokens of keys and values could not be allocated"
        raise OutOfMemory(text, hint="lower the context (--ctx) or the number of sequences (--parallel)") from error
