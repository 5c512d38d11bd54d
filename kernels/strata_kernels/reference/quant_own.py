"""Our own types, which quantised safetensors are brought into: I4 I8 F8, in blocks of 32 or 128. Decoders only.

A block is an f32 scale, in I4 and I8 a signed byte for the zero, and the codes in order: two a byte in I4 (the low half
first), bytes less 128 in I8, floats of 4 exponent and 3 mantissa bits in F8 (the code of NaN is not used).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from strata_kernels.reference.blocks import Block, nibble_pairs


def _single(data: Tensor) -> Tensor:
    # a copy of its own: a view of other bytes may start anywhere and have any stride
    return data[:, :4].reshape(-1).clone().view(torch.float32).reshape(-1, 1)


def _zero(data: Tensor) -> Tensor:
    return data[:, 4:5].contiguous().view(torch.int8).to(torch.float32)


def _unpack_i4(data: Tensor) -> Tensor:
    return _single(data) * (nibble_pairs(data[:, 5:]).to(torch.float32) - _zero(data))


def _unpack_i8(data: Tensor) -> Tensor:
    return _single(data) * (data[:, 5:].to(torch.float32) - 128 - _zero(data))


def _unpack_f8(data: Tensor) -> Tensor:
    """The bits of an 8-bit float, moved, are those of an f16 that is 2^8 times too small."""
    wide = data[:, 4:].to(torch.int32)
    halves = ((wide & 0x7F) << 7 | (wide & 0x80) << 8).to(torch.int16).view(torch.float16)
    return _single(data) * (halves.to(torch.float32) * 256)


def _blocks(name: str, unpack: Callable[[Tensor], Tensor], head: int, bits: int) -> dict[str, Block]:
    return {f"{name}_{size}": Block(size, head + size * bits // 8, unpack) for size in (32, 128)}


BLOCKS = {**_blocks("I4", _unpack_i4, 5, 4), **_blocks("I8", _unpack_i8, 5, 8), **_blocks("F8", _unpack_f8, 4, 8)}
