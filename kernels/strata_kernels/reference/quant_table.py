"""Codes that index a small table or count in threes: IQ4_NL IQ4_XS MXFP4 NVFP4 TQ1_0 TQ2_0. Decoders only."""

from __future__ import annotations

import torch
from torch import Tensor

from strata_kernels.reference.blocks import Block, fields, half, nibble_pairs, nibbles, planes, scaled, u16

_CURVE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# 4-bit floats (1 sign, 2 exponent, 1 mantissa bit) times two; minus zero becomes plus zero, as in public decoders
_FP4_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _looked_up(table: tuple[int, ...], codes: Tensor) -> Tensor:
    return torch.tensor(table, dtype=torch.float32)[codes.long()]


def _unpack_iq4_nl(data: Tensor) -> Tensor:
    return half(data, 0) * _looked_up(_CURVE, nibbles(data[:, 2:]))


def _unpack_iq4_xs(data: Tensor) -> Tensor:
    high = fields(u16(data[:, 2:4]), range(0, 16, 2), 3).reshape(-1, 8)
    scales = (nibble_pairs(data[:, 4:8]).long() | high << 4).to(torch.float32) - 32
    codes = nibbles(data[:, 8:].reshape(-1, 16)).reshape(-1, 256)
    return scaled(half(data, 0) * scales, _looked_up(_CURVE, codes))


def _power_of_two(exponents: Tensor) -> Tensor:
    """u8 e -> f32 2^(e - 128): half of what the exponent says, since the table is doubled. Subnormal for e < 2."""
    wide = exponents.to(torch.int32)
    bits = torch.where(wide < 2, 0x00200000 << wide, (wide - 1) << 23)
    return bits.view(torch.float32)


def _unpack_mxfp4(data: Tensor) -> Tensor:
    return _power_of_two(data[:, :1].contiguous()) * _looked_up(_FP4_DOUBLED, nibbles(data[:, 1:]))


def _unsigned_e4m3(codes: Tensor) -> Tensor:
    """u8 -> f32: 4 exponent bits (bias 7), 3 mantissa bits, the top bit ignored; 0x7f is 0, not a number too large."""
    exponent, mantissa = ((codes >> 3) & 15).to(torch.float32), (codes & 7).to(torch.float32)
    normal = (1 + mantissa / 8) * torch.exp2(exponent - 7)
    value = torch.where(exponent == 0, mantissa * 2.0**-9, normal)
    return torch.where((codes == 0) | (codes == 0x7F), torch.zeros_like(value), value)


def _unpack_nvfp4(data: Tensor) -> Tensor:
    codes = nibbles(data[:, 4:].reshape(-1, 8)).reshape(-1, 64)
    return scaled(_unsigned_e4m3(data[:, :4]) * 0.5, _looked_up(_FP4_DOUBLED, codes))


def _trits(data: Tensor, count: int) -> Tensor:
    """u8 [n, m], `count` base-3 digits each as a fixed-point fraction -> [n, count * m], all first ones first."""
    powers = torch.tensor([1, 3, 9, 27, 81][:count], dtype=torch.uint8)
    shifted = (data[:, None, :] * powers[:, None]).to(torch.int32)  # the product wraps at 256 by design
    return ((shifted * 3) >> 8).reshape(data.shape[0], -1)


def _unpack_tq1_0(data: Tensor) -> Tensor:
    digits = torch.cat([_trits(data[:, :32], 5), _trits(data[:, 32:48], 5), _trits(data[:, 48:52], 4)], 1)
    return half(data, 52) * (digits.to(torch.float32) - 1)


def _unpack_tq2_0(data: Tensor) -> Tensor:
    return half(data, 64) * (planes(data[:, :64], (0, 2, 4, 6), 3).to(torch.float32) - 1)


BLOCKS = {
    "IQ4_NL": Block(32, 18, _unpack_iq4_nl),
    "IQ4_XS": Block(256, 136, _unpack_iq4_xs),
    "MXFP4": Block(32, 17, _unpack_mxfp4),
    "NVFP4": Block(64, 36, _unpack_nvfp4),
    "TQ1_0": Block(256, 54, _unpack_tq1_0),
    "TQ2_0": Block(256, 66, _unpack_tq2_0),
}
