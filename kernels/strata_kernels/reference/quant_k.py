"""Super-blocks of 256 values with quantised scales of sub-blocks: Q2_K Q3_K Q4_K Q5_K Q6_K. Decoders only."""

from __future__ import annotations

import torch
from torch import Tensor

from strata_kernels.reference.blocks import Block, bits, fields, half, nibbles, planes, scaled


def _unpack_q2_k(data: Tensor) -> Tensor:
    codes = planes(data[:, 16:80], (0, 2, 4, 6), 3)
    steps = half(data, 80) * (data[:, :16] & 15).to(torch.float32)
    offsets = half(data, 82) * (data[:, :16] >> 4).to(torch.float32)
    return scaled(steps, codes) - offsets.repeat_interleave(16, 1)


def _scales_q3_k(data: Tensor) -> Tensor:
    """12 bytes -> sixteen 6-bit scales less 32, f32 [n, 16]: four low bits in 8 bytes, two high ones in 4."""
    low = nibbles(data[:, :8])
    high = fields(data[:, 8:], (0, 2, 4, 6), 3).transpose(1, 2).reshape(-1, 16)
    return (low | high << 4).to(torch.float32) - 32


def _unpack_q3_k(data: Tensor) -> Tensor:
    low = planes(data[:, 32:96], (0, 2, 4, 6), 3)
    high = bits(data[:, :32]).reshape(-1, 32, 8).transpose(1, 2).reshape(-1, 256)  # bit j belongs to the jth 32 values
    codes = (low | high << 2).to(torch.float32) - 4
    return scaled(half(data, 108) * _scales_q3_k(data[:, 96:108]), codes)


def _scales_6bit(data: Tensor) -> tuple[Tensor, Tensor]:
    """12 bytes -> eight 6-bit scales and eight 6-bit minimums, f32 [n, 8] each."""
    first, second, third = data[:, 0:4], data[:, 4:8], data[:, 8:12]
    scales = torch.cat([first & 63, (third & 15) | (first >> 6) << 4], 1)
    minimums = torch.cat([second & 63, (third >> 4) | (second >> 6) << 4], 1)
    return scales.to(torch.float32), minimums.to(torch.float32)


def _affine_256(data: Tensor, codes: Tensor) -> Tensor:
    """d * scale * code - dmin * minimum over eight sub-blocks of 32."""
    scales, minimums = _scales_6bit(data[:, 4:16])
    steps, offsets = half(data, 0) * scales, half(data, 2) * minimums
    return scaled(steps, codes) - offsets.repeat_interleave(32, 1)


def _unpack_q4_k(data: Tensor) -> Tensor:
    return _affine_256(data, planes(data[:, 16:], (0, 4), 15))


def _unpack_q5_k(data: Tensor) -> Tensor:
    return _affine_256(data, planes(data[:, 48:], (0, 4), 15) | planes(data[:, 16:48], range(8), 1) << 4)


def _unpack_q6_k(data: Tensor) -> Tensor:
    halves = data[:, :128].reshape(-1, 2, 1, 64)
    low = torch.cat([halves & 15, halves >> 4], 2).reshape(-1, 256)
    codes = (low | planes(data[:, 128:192], (0, 2, 4, 6), 3) << 4).to(torch.float32) - 32
    scales = data[:, 192:208].contiguous().view(torch.int8).to(torch.float32)
    return scaled(half(data, 208) * scales, codes)


BLOCKS = {
    "Q2_K": Block(256, 84, _unpack_q2_k),
    "Q3_K": Block(256, 110, _unpack_q3_k),
    "Q4_K": Block(256, 144, _unpack_q4_k),
    "Q5_K": Block(256, 176, _unpack_q5_k),
    "Q6_K": Block(256, 210, _unpack_q6_k),
}
