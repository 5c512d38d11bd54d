"""Super-blocks of 256 values, 4 or 8 at a time a point of a codebook: IQ1_S IQ1_M IQ2_* IQ3_*. Decoders only.

Every point has a sign pattern (IQ2, IQ3) or a common shift (IQ1); scales cover 16 or 32 values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from strata_kernels.reference.blocks import Block, bits, fields, half, nibble_pairs, scaled, u16, u32
from strata_kernels.reference.codebooks import grid, plain_signs, signs

_SHIFT = 0.125  # of a whole IQ1 group, up or down


def _points(type_name: str, codes: Tensor, sign: Tensor) -> Tensor:
    """Codebook points of codes [n, c] with the signs f32 [n, 256] put on -> f32 [n, 256]."""
    return grid(type_name)[codes.long()].reshape(codes.shape[0], -1) * sign.reshape(codes.shape[0], -1)


def _packed_signs(words: Tensor) -> Tensor:
    """Four 7-bit sign codes in the low bits of each word i64 [n, 8] -> f32 [n, 256]."""
    return signs()[fields(words, (0, 7, 14, 21), 127)].reshape(words.shape[0], -1)


def _unpack_iq2_xxs(data: Tensor) -> Tensor:
    groups = data[:, 2:].reshape(-1, 8, 8)
    codes, words = groups[..., :4].reshape(-1, 32), u32(groups[..., 4:].reshape(-1, 32))
    scales = half(data, 0) * (0.5 + (words >> 28).to(torch.float32)) * 0.25
    return scaled(scales, _points("IQ2_XXS", codes, _packed_signs(words)))


def _scales_of_16(data: Tensor, at: int) -> Tensor:
    """(0.5 + 4-bit scale) / 4 times the block's, from 8 bytes: f32 [n, 16]."""
    return half(data, 0) * (0.5 + nibble_pairs(data[:, at : at + 8]).to(torch.float32)) * 0.25


def _unpack_iq2_xs(data: Tensor) -> Tensor:
    words = u16(data[:, 2:66])
    return scaled(_scales_of_16(data, 66), _points("IQ2_XS", words & 511, signs()[words >> 9]))


def _unpack_iq2_s(data: Tensor) -> Tensor:
    high = fields(data[:, 66:74], (0, 2, 4, 6), 3).reshape(-1, 32)
    codes = data[:, 2:34].long() | high.long() << 8
    return scaled(_scales_of_16(data, 74), _points("IQ2_S", codes, plain_signs(bits(data[:, 34:66]))))


def _unpack_iq3_xxs(data: Tensor) -> Tensor:
    words = u32(data[:, 66:98])
    scales = half(data, 0) * (0.5 + (words >> 28).to(torch.float32)) * 0.5
    return scaled(scales, _points("IQ3_XXS", data[:, 2:66], _packed_signs(words)))


def _unpack_iq3_s(data: Tensor) -> Tensor:
    codes = data[:, 2:66].long() | bits(data[:, 66:74]).long() << 8
    scales = half(data, 0) * (1 + 2 * nibble_pairs(data[:, 106:110]).to(torch.float32))
    return scaled(scales, _points("IQ3_S", codes, plain_signs(bits(data[:, 74:106]))))


def _shifted(codes: Tensor, down: Tensor) -> Tensor:
    """IQ1 points of codes [n, 32], each group of 8 values moved up or (down [n, 32] not 0) down: f32 [n, 256]."""
    shift = torch.where(down != 0, -_SHIFT, _SHIFT).to(torch.float32)
    return (grid("IQ1_S")[codes.long()] + shift[..., None]).reshape(codes.shape[0], -1)


def _unpack_iq1_s(data: Tensor) -> Tensor:
    words = u16(data[:, 34:50])
    codes = data[:, 2:34].long() | fields(words, (0, 3, 6, 9), 7).reshape(-1, 32) << 8
    scales = half(data, 0) * (2 * ((words >> 12) & 7) + 1).to(torch.float32)
    return scaled(scales, _shifted(codes, (words >> 15).repeat_interleave(4, 1)))


def _spread_half(words: Tensor) -> Tensor:
    """The f16 whose four nibbles are the top ones of four words, lowest first: i64 [n, 4] -> f32 [n, 1]."""
    pieces = (words >> 12) << torch.tensor([0, 4, 8, 12])
    value = pieces.sum(1, keepdim=True)
    return half(torch.cat([value & 255, value >> 8], 1).to(torch.uint8), 0)


def _unpack_iq1_m(data: Tensor) -> Tensor:
    high, words = nibble_pairs(data[:, 32:48]).long(), u16(data[:, 48:56])
    scales = _spread_half(words) * (2 * fields(words, (0, 3, 6, 9), 7).reshape(-1, 16) + 1).to(torch.float32)
    return scaled(scales, _shifted(data[:, :32].long() | (high & 7) << 8, high & 8))


BLOCKS = {
    "IQ1_S": Block(256, 50, _unpack_iq1_s),
    "IQ1_M": Block(256, 56, _unpack_iq1_m),
    "IQ2_XXS": Block(256, 66, _unpack_iq2_xxs),
    "IQ2_XS": Block(256, 74, _unpack_iq2_xs),
    "IQ2_S": Block(256, 82, _unpack_iq2_s),
    "IQ3_XXS": Block(256, 98, _unpack_iq3_xxs),
    "IQ3_S": Block(256, 110, _unpack_iq3_s),
}
