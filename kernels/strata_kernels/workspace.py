"""Memory whose addresses never move: a stack of blocks for the tensors of a step, and aligned buffers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

ALIGNMENT = 64


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


class Workspace:
    """Tensors with stack lifetime, cut from blocks that are kept until the Workspace goes."""

    def __init__(self, block_bytes: int = 8 << 20) -> None:
        """`block_bytes`: least size of a block; a larger tensor gets a block of its own size."""
        self._block_bytes = block_bytes
        self._blocks: list[Tensor] = []
        self._block = 0
        self._used_bytes = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised contiguous tensor, valid until the enclosing scope ends. Raises ValueError: bad shape."""
        if any(size < 0 for size in shape):
            raise ValueError(f"take: negative size in {shape}")
        count = 1
        for size in shape:
            count *= size
        need_bytes = count * dtype.itemsize
        block = self._block_with(_round_up(max(need_bytes, 1), ALIGNMENT))
        start = self._used_bytes
        self._used_bytes += _round_up(max(need_bytes, 1), ALIGNMENT)
        return block[start : start + need_bytes].view(dtype).view(shape)

    def _block_with(self, need_bytes: int) -> Tensor:
        while True:
            if self._block == len(self._blocks):
                self._blocks.append(aligned(max(need_bytes, self._block_bytes)))
            block = self._blocks[self._block]
            if self._used_bytes + need_bytes <= block.numel():
                return block
            self._block += 1
            self._used_bytes = 0

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Gives back at its end everything taken inside."""
        mark = (self._block, self._used_bytes)
        try:
            yield
        finally:
            self._block, self._used_bytes = mark


def aligned(count_bytes: int, alignment: int = ALIGNMENT) -> Tensor:
    """An uninitialised u8 tensor that starts at a multiple of `alignment`."""
    raw = torch.empty(count_bytes + alignment, dtype=torch.uint8)
    start = -raw.data_ptr() % alignment
    return raw[start : start + count_bytes]
