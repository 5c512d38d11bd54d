"""Floats, and blocks with one f16 scale (and one minimum in the _1 types): Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q1_0 Q2_0.

All but the last two have encoders, which write what the public writers write.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from strata_kernels.reference.blocks import Block, bit_bytes, bits, fields, half, half_bytes, nibble_bytes, nibbles


def _unpack_float(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda data: data.contiguous().view(dtype).to(torch.float32)


def _pack_float(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda values: values.to(dtype).contiguous().view(torch.uint8)


def _unpack_q4_0(data: Tensor) -> Tensor:
    return half(data, 0) * (nibbles(data[:, 2:]).to(torch.float32) - 8)


def _unpack_q4_1(data: Tensor) -> Tensor:
    return half(data, 0) * nibbles(data[:, 4:]).to(torch.float32) + half(data, 2)


def _unpack_q5_0(data: Tensor) -> Tensor:
    codes = nibbles(data[:, 6:]) | bits(data[:, 2:6]) << 4
    return half(data, 0) * (codes.to(torch.float32) - 16)


def _unpack_q5_1(data: Tensor) -> Tensor:
    codes = nibbles(data[:, 8:]) | bits(data[:, 4:8]) << 4
    return half(data, 0) * codes.to(torch.float32) + half(data, 2)


def _unpack_q8_0(data: Tensor) -> Tensor:
    return half(data, 0) * data[:, 2:].contiguous().view(torch.int8).to(torch.float32)


def _unpack_q1_0(data: Tensor) -> Tensor:
    scale = half(data, 0)
    return torch.where(bits(data[:, 2:]) == 1, scale, -scale)


def _unpack_q2_0(data: Tensor) -> Tensor:
    codes = fields(data[:, 2:], (0, 2, 4, 6), 3).reshape(data.shape[0], -1)
    return half(data, 0) * (codes.to(torch.float32) - 1)


def _inverse(scale: Tensor) -> Tensor:
    """1 / scale, 0 where scale is 0."""
    return torch.where(scale == 0, torch.zeros_like(scale), 1 / scale)


def _signed_codes(values: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """(scale, codes 0..levels-1) of formats whose value is scale * (code - levels / 2): the extreme maps to code 0."""
    extreme = values.gather(1, values.abs().argmax(1, keepdim=True))
    scale = extreme / -(levels // 2)
    codes = (values * _inverse(scale) + (levels // 2 + 0.5)).floor().clamp(0, levels - 1)
    return scale, codes.to(torch.uint8)


def _offset_codes(values: Tensor, levels: int) -> tuple[Tensor, Tensor, Tensor]:
    """(scale, minimum, codes 0..levels-1) of formats whose value is scale * code + minimum."""
    low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    scale = (high - low) / (levels - 1)
    codes = ((values - low) * _inverse(scale) + 0.5).floor().clamp(0, levels - 1)
    return scale, low, codes.to(torch.uint8)


def _pack_q4_0(values: Tensor) -> Tensor:
    scale, codes = _signed_codes(values, 16)
    return torch.cat([half_bytes(scale), nibble_bytes(codes)], 1)


def _pack_q4_1(values: Tensor) -> Tensor:
    scale, low, codes = _offset_codes(values, 16)
    return torch.cat([half_bytes(scale), half_bytes(low), nibble_bytes(codes)], 1)


def _pack_q5_0(values: Tensor) -> Tensor:
    scale, codes = _signed_codes(values, 32)
    return torch.cat([half_bytes(scale), bit_bytes(codes >> 4), nibble_bytes(codes & 15)], 1)


def _pack_q5_1(values: Tensor) -> Tensor:
    scale, low, codes = _offset_codes(values, 32)
    return torch.cat([half_bytes(scale), half_bytes(low), bit_bytes(codes >> 4), nibble_bytes(codes & 15)], 1)


def _pack_q8_0(values: Tensor) -> Tensor:
    scale = values.abs().amax(1, keepdim=True) / 127
    in_steps = values * _inverse(scale)
    codes = (in_steps.abs() + 0.5).floor() * in_steps.sign()  # halves away from zero, as the format's writers do
    return torch.cat([half_bytes(scale), codes.to(torch.int8).view(torch.uint8)], 1)


BLOCKS = {
    "F32": Block(1, 4, _unpack_float(torch.float32), _pack_float(torch.float32)),
    "F16": Block(1, 2, _unpack_float(torch.float16), _pack_float(torch.float16)),
    "BF16": Block(1, 2, _unpack_float(torch.bfloat16), _pack_float(torch.bfloat16)),
    "Q8_0": Block(32, 34, _unpack_q8_0, _pack_q8_0),
    "Q4_0": Block(32, 18, _unpack_q4_0, _pack_q4_0),
    "Q4_1": Block(32, 20, _unpack_q4_1, _pack_q4_1),
    "Q5_0": Block(32, 22, _unpack_q5_0, _pack_q5_0),
    "Q5_1": Block(32, 24, _unpack_q5_1, _pack_q5_1),
    "Q1_0": Block(128, 18, _unpack_q1_0),
    "Q2_0": Block(64, 18, _unpack_q2_0),
}
