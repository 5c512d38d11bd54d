"""The codebooks of the IQ types: grids from the gguf package (they are data of the format), signs computed."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def grid(type_name: str) -> Tensor:
    """Points of a type's codebook, f32 [points, 4 or 8]: row i is what code i stands for. Never to be written to."""
    import gguf

    kind = getattr(gguf.quants, type_name)
    kind.init_grid()
    return torch.from_numpy(kind.grid.copy()).reshape(kind.grid_shape)


@cache
def signs() -> Tensor:
    """f32 [128, 8] of +1 and -1: seven sign bits, and an eighth that makes the number of minus signs even."""
    code = torch.arange(128)[:, None]
    minus = (code >> torch.arange(7)) & 1
    minus = torch.cat([minus, minus.sum(1, keepdim=True) & 1], 1)
    return (1 - 2 * minus).to(torch.float32)


def plain_signs(bits: Tensor) -> Tensor:
    """Bits 0/1 -> f32 +1/-1."""
    return 1 - 2 * bits.to(torch.float32)
