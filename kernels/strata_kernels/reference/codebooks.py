"""The codebooks of the IQ types as torch reads them: their points, and signs, which are computed."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from strata_kernels.grids import codebook


@cache
def grid(type_name: str) -> Tensor:
    """Points of a type's codebook, f32 [points, 4 or 8]: row i is what code i stands for. Never to be written to."""
    points = codebook(type_name)
    if points is None:
        raise ValueError(f"{type_name} has no codebook")
    return torch.from_numpy(points).to(torch.float32)


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
