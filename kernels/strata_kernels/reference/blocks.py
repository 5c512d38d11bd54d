"""What the decoders share: the description of a storage type and the ways blocks hold small numbers.

Everywhere `data` is u8 [n, bytes of a block]; results keep the n. Wide fields are little endian and come back as i64,
because torch shifts no unsigned type wider than a byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """One storage type: elements and bytes of a block, decoder, and encoder where there is a simple one."""

    elements: int
    nbytes: int
    unpack: Callable[[Tensor], Tensor]
    pack: Callable[[Tensor], Tensor] | None = None


def half(data: Tensor, at: int) -> Tensor:
    """The f16 at byte `at` of each block, as f32 [n, 1]."""
    return data[:, at : at + 2].contiguous().view(torch.float16).to(torch.float32)


def half_bytes(values: Tensor) -> Tensor:
    """f32 [n, 1] -> its f16 bytes [n, 2]."""
    return values.to(torch.float16).view(torch.uint8).reshape(-1, 2)


def u16(data: Tensor) -> Tensor:
    """u8 [n, 2m] -> i64 [n, m]."""
    pairs = data.reshape(data.shape[0], -1, 2).to(torch.int64)
    return pairs[..., 0] | pairs[..., 1] << 8


def u32(data: Tensor) -> Tensor:
    """u8 [n, 4m] -> i64 [n, m]."""
    low_high = u16(data).reshape(data.shape[0], -1, 2)
    return low_high[..., 0] | low_high[..., 1] << 16


def fields(data: Tensor, shifts: Sequence[int], mask: int) -> Tensor:
    """(x >> s) & mask of each element for each shift: [n, ..] -> [n, .., shifts]."""
    return (data[..., None] >> torch.tensor(shifts, dtype=data.dtype)) & mask


def nibbles(data: Tensor) -> Tensor:
    """u8 [n, m] -> [n, 2m]: all low halves, then all high halves."""
    return torch.cat([data & 15, data >> 4], 1)


def nibble_bytes(codes: Tensor) -> Tensor:
    """Inverse of `nibbles`."""
    middle = codes.shape[1] // 2
    return codes[:, :middle] | codes[:, middle:] << 4


def nibble_pairs(data: Tensor) -> Tensor:
    """u8 [n, m] -> [n, 2m]: the low and the high half of each byte side by side."""
    return fields(data, (0, 4), 15).reshape(data.shape[0], -1)


def bits(data: Tensor) -> Tensor:
    """u8 [n, m] -> bits [n, 8m], lowest first."""
    return fields(data, range(8), 1).reshape(data.shape[0], -1)


def bit_bytes(found: Tensor) -> Tensor:
    """Inverse of `bits`."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return (found.reshape(found.shape[0], -1, 8) << shifts).sum(-1, dtype=torch.uint8)


def planes(data: Tensor, shifts: Sequence[int], mask: int) -> Tensor:
    """Runs of 32 bytes, each holding `len(shifts)` runs of 32 codes: u8 [n, 32m] -> u8 [n, 32m * shifts] in order."""
    runs = data.reshape(data.shape[0], -1, 1, 32)
    places = torch.tensor(shifts, dtype=torch.uint8).reshape(1, 1, -1, 1)
    return ((runs >> places) & mask).reshape(data.shape[0], -1)


def scaled(scales: Tensor, codes: Tensor) -> Tensor:
    """scales f32 [n, s] times equal runs of codes [n, e] -> f32 [n, e]."""
    runs = codes.to(torch.float32).reshape(*scales.shape, -1)
    return (scales[..., None] * runs).reshape(codes.shape[0], -1)
