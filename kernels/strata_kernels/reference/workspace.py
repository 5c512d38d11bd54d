"""Step-local tensors in stack order whose addresses never move, so that recorded steps may hold them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes; a cache line
_LEAST_CHUNK = 1 << 20


class Workspace:
    """A stack of bytes made of chunks that are never moved or freed while the workspace lives."""

    def __init__(self) -> None:
        self._chunks: list[Tensor] = []
        self._chunk = 0  # chunk in use
        self._used = 0  # bytes used of it

    def take(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """An uninitialised tensor, valid until the enclosing scope ends."""
        nbytes = math.prod(shape) * dtype.itemsize
        reserved = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        while self._chunk < len(self._chunks) and self._used + reserved > self._chunks[self._chunk].numel():
            self._chunk, self._used = self._chunk + 1, 0
        if self._chunk == len(self._chunks):
            self._chunks.append(torch.empty(max(reserved, _LEAST_CHUNK), dtype=torch.uint8))
        start, self._used = self._used, self._used + reserved
        return self._chunks[self._chunk][start : start + nbytes].view(dtype).reshape(shape)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Everything taken inside is given back at the end."""
        mark = self._chunk, self._used
        try:
            yield
        finally:
            self._chunk, self._used = mark
