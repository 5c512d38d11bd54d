"""Memory whose addresses never move: a stack of blocks for the arrays of a step, and aligned buffers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata_kernels.arrays import NUMPY_TYPES, address

ALIGNMENT = 64


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


class Workspace:
    """Arrays with stack lifetime, cut from blocks that are kept until the Workspace goes."""

    def __init__(self, block_bytes: int = 8 << 20) -> None:
        """`block_bytes`: least size of a block; a larger array gets a block of its own size."""
        self._block_bytes = block_bytes
        self._blocks: list[NDArray[np.uint8]] = []
        self._block = 0
        self._used_bytes = 0

    def take(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """An uninitialised contiguous array, valid until the enclosing scope ends. Raises ValueError: bad shape."""
        if any(size < 0 for size in shape):
            raise ValueError(f"take: negative size in {shape}")
        count = 1
        for size in shape:
            count *= size
        kind = NUMPY_TYPES[dtype]
        need_bytes = count * kind.itemsize
        block = self._block_with(_round_up(max(need_bytes, 1), ALIGNMENT))
        start = self._used_bytes
        self._used_bytes += _round_up(max(need_bytes, 1), ALIGNMENT)
        return block[start : start + need_bytes].view(kind).reshape(shape)

    def _block_with(self, need_bytes: int) -> NDArray[np.uint8]:
        while True:
            if self._block == len(self._blocks):
                self._blocks.append(aligned(max(need_bytes, self._block_bytes)))
            block = self._blocks[self._block]
            if self._used_bytes + need_bytes <= block.size:
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


def aligned(count_bytes: int, alignment: int = ALIGNMENT) -> NDArray[np.uint8]:
    """An uninitialised u8 array that starts at a multiple of `alignment`."""
    raw = np.empty(count_bytes + alignment, np.uint8)
    start = -address(raw) % alignment
    return raw[start : start + count_bytes]
