"""Blocks of a file taken apart on the host, in numpy: codes, scales and what else `Cells` wants, one function a type.

Nothing is computed that rounds: scales stay as stored. `data` is u8 [n, bytes of a block].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata_kernels.grids import codebook

Numbers = NDArray[Any]
Bytes = NDArray[Any]  # u8; numpy's own types of shifts and masks are wider


@dataclass(frozen=True)
class Taken:
    """Codes u8 [n, columns]; per block and per part as `Cells` says: scales, parts, lows, low_parts."""

    codes: Bytes
    scales: Numbers
    parts: Numbers | None = None
    lows: Numbers | None = None
    low_parts: Numbers | None = None


def _half(data: Bytes, at: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(data[:, at : at + 2]).view("<f2")


def _single(data: Bytes) -> NDArray[np.float32]:
    return np.ascontiguousarray(data[:, :4]).view("<f4")


def _wide(data: Bytes, kind: str) -> NDArray[np.uint32]:
    return np.ascontiguousarray(data).view(kind).astype(np.uint32)


def _fields(data: Numbers, shifts: Sequence[int], mask: int) -> Numbers:
    """(x >> s) & mask for each shift, side by side: [n, m] -> [n, m * shifts]."""
    places = np.array(shifts, data.dtype)
    return ((data[:, :, None] >> places) & data.dtype.type(mask)).reshape(data.shape[0], -1)


def _nibbles(data: Bytes, run: int) -> Bytes:
    """Of every `run` bytes all low halves, then all high ones: [n, m] -> [n, 2m]."""
    runs = data.reshape(data.shape[0], -1, 1, run)
    return np.concatenate([runs & 15, runs >> 4], 2).reshape(data.shape[0], -1)


def _planes(data: Bytes, shifts: Sequence[int], mask: int) -> Bytes:
    """Runs of 32 bytes, each of `len(shifts)` runs of 32 codes, in order."""
    runs = data.reshape(data.shape[0], -1, 1, 32)
    return ((runs >> np.array(shifts, np.uint8)[:, None]) & np.uint8(mask)).reshape(data.shape[0], -1)


def _bits(data: Bytes) -> Bytes:
    return _fields(data, range(8), 1)


def _pairs(data: Bytes) -> Bytes:
    """The low and the high half of each byte side by side."""
    return _fields(data, (0, 4), 15)


def _q4_0(data: Bytes) -> Taken:
    return Taken(_nibbles(data[:, 2:], 16), _half(data, 0))


def _q4_1(data: Bytes) -> Taken:
    return Taken(_nibbles(data[:, 4:], 16), _half(data, 0), lows=_half(data, 2))


def _q5_0(data: Bytes) -> Taken:
    return Taken(_nibbles(data[:, 6:], 16) | _bits(data[:, 2:6]) << 4, _half(data, 0))


def _q5_1(data: Bytes) -> Taken:
    return Taken(_nibbles(data[:, 8:], 16) | _bits(data[:, 4:8]) << 4, _half(data, 0), lows=_half(data, 2))


def _q8_0(data: Bytes) -> Taken:
    return Taken(data[:, 2:] ^ 0x80, _half(data, 0))  # signed codes plus 128


def _q1_0(data: Bytes) -> Taken:
    return Taken(_bits(data[:, 2:]), _half(data, 0))


def _q2_0(data: Bytes) -> Taken:
    return Taken(_fields(data[:, 2:], (0, 2, 4, 6), 3), _half(data, 0))


def _q2_k(data: Bytes) -> Taken:
    codes = _planes(data[:, 16:80], (0, 2, 4, 6), 3)
    return Taken(codes, _half(data, 80), data[:, :16] & 15, _half(data, 82), data[:, :16] >> 4)


def _q3_k(data: Bytes) -> Taken:
    low = _planes(data[:, 32:96], (0, 2, 4, 6), 3)
    high = _bits(data[:, :32]).reshape(-1, 32, 8).transpose(0, 2, 1).reshape(-1, 256)
    tops = _fields(data[:, 104:108], (0, 2, 4, 6), 3).reshape(-1, 4, 4).transpose(0, 2, 1).reshape(-1, 16)
    parts = (_nibbles(data[:, 96:104], 8) | tops << 4).astype(np.int8) - 32
    return Taken(low | high << 2, _half(data, 108), parts)


def _six_bits(data: Bytes) -> tuple[Bytes, Bytes]:
    """12 bytes: eight scales and eight multiples of the least value, of six bits each."""
    first, second, third = data[:, 0:4], data[:, 4:8], data[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], 1)
    return scales, np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], 1)


def _affine_256(data: Bytes, codes: Bytes) -> Taken:
    scales, lows = _six_bits(data[:, 4:16])
    return Taken(codes, _half(data, 0), scales, _half(data, 2), lows)


def _q4_k(data: Bytes) -> Taken:
    return _affine_256(data, _planes(data[:, 16:], (0, 4), 15))


def _q5_k(data: Bytes) -> Taken:
    return _affine_256(data, _planes(data[:, 48:], (0, 4), 15) | _planes(data[:, 16:48], range(8), 1) << 4)


def _q6_k(data: Bytes) -> Taken:
    codes = _nibbles(data[:, :128], 64) | _planes(data[:, 128:192], (0, 2, 4, 6), 3) << 4
    return Taken(codes, _half(data, 208), data[:, 192:208])


def _iq4_nl(data: Bytes) -> Taken:
    return Taken(_nibbles(data[:, 2:], 16), _half(data, 0))


def _iq4_xs(data: Bytes) -> Taken:
    high = _fields(data[:, 2:4], (0, 2, 4, 6), 3)
    return Taken(_nibbles(data[:, 8:], 16), _half(data, 0), (_pairs(data[:, 4:8]) | high << 4).astype(np.int8) - 32)


def _mxfp4(data: Bytes) -> Taken:
    return Taken(_nibbles(data[:, 1:], 16), data[:, :1])


def _nvfp4(data: Bytes) -> Taken:
    """Scales are unsigned floats of 4 + 3 bits: exactly an f16 that is 2^8 times too small; 0x7f counts as 0."""
    scale = data[:, :4] & 0x7F
    scale = np.where(scale == 0x7F, np.uint8(0), scale).astype(np.uint16) << 7
    return Taken(_nibbles(data[:, 4:], 8), (scale.view("<f2").astype(np.float32) * 256).astype(np.float16))


def _trits(data: Bytes, count: int) -> Bytes:
    """`count` digits of base 3 in each byte, a fixed-point fraction: all first ones, then all second ones, ..."""
    shifted = data[:, None, :] * np.array([1, 3, 9, 27, 81][:count], np.uint8)[:, None]  # wraps at 256 by design
    return ((shifted.astype(np.uint16) * 3) >> 8).astype(np.uint8).reshape(data.shape[0], -1)


def _tq1_0(data: Bytes) -> Taken:
    digits = [_trits(data[:, :32], 5), _trits(data[:, 32:48], 5), _trits(data[:, 48:52], 4)]
    return Taken(np.concatenate(digits, 1), _half(data, 52))


def _tq2_0(data: Bytes) -> Taken:
    return Taken(_planes(data[:, :64], (0, 2, 4, 6), 3), _half(data, 64))


def _i4(data: Bytes) -> Taken:
    return Taken(_pairs(data[:, 5:]), _single(data), lows=data[:, 4:5])


def _i8(data: Bytes) -> Taken:
    return Taken(data[:, 5:], _single(data), lows=data[:, 4:5])


def _f8(data: Bytes) -> Taken:
    return Taken(data[:, 4:], _single(data))


# --- codebooks: a point's numbers become codes of their own, signs a bit of each ---------------------------------


def _sizes(type_name: str, numbers: Numbers) -> Bytes:
    """Points of a codebook as small codes, u8 [n, 4 or 8 for each]."""
    points = codebook(type_name)
    if points is None:
        raise ValueError(f"{type_name} has no codebook")
    sizes = np.unique(points)
    return np.searchsorted(sizes, points).astype(np.uint8)[numbers].reshape(numbers.shape[0], -1)


def _even_signs(numbers: Numbers) -> Bytes:
    """Seven sign bits and an eighth that makes their number even: [n, m] -> [n, 8m]."""
    code = np.arange(128)[:, None]
    minus = (code >> np.arange(7)) & 1
    table = np.concatenate([minus, minus.sum(1, keepdims=True) & 1], 1).astype(np.uint8)
    return table[numbers].reshape(numbers.shape[0], -1)


def _odd(data: Bytes) -> Bytes:
    """(1/2 + s) of four bits each, doubled: whole numbers, u8 [n, 2m]."""
    return 2 * _pairs(data) + 1


def _iq2_xxs(data: Bytes) -> Taken:
    groups = data[:, 2:].reshape(-1, 8, 8)
    numbers = np.ascontiguousarray(groups[..., :4]).reshape(-1, 32)
    words = _wide(groups[..., 4:], "<u4").reshape(-1, 8)
    codes = _sizes("IQ2_XXS", numbers) | _even_signs(_fields(words, (0, 7, 14, 21), 127)) << 2
    return Taken(codes, _half(data, 0), (2 * (words >> 28) + 1).astype(np.int8))


def _iq2_xs(data: Bytes) -> Taken:
    words = _wide(data[:, 2:66], "<u2")
    codes = _sizes("IQ2_XS", words & 511) | _even_signs(words >> 9) << 2
    return Taken(codes, _half(data, 0), _odd(data[:, 66:74]))


def _iq2_s(data: Bytes) -> Taken:
    high = _fields(data[:, 66:74], (0, 2, 4, 6), 3).astype(np.uint32)
    codes = _sizes("IQ2_S", data[:, 2:34] | high << 8) | _bits(data[:, 34:66]) << 2
    return Taken(codes, _half(data, 0), _odd(data[:, 74:82]))


def _iq3_xxs(data: Bytes) -> Taken:
    words = _wide(data[:, 66:98], "<u4")
    codes = _sizes("IQ3_XXS", data[:, 2:66]) | _even_signs(_fields(words, (0, 7, 14, 21), 127)) << 3
    return Taken(codes, _half(data, 0), (2 * (words >> 28) + 1).astype(np.int8))


def _iq3_s(data: Bytes) -> Taken:
    numbers = data[:, 2:66] | _bits(data[:, 66:74]).astype(np.uint32) << 8
    codes = _sizes("IQ3_S", numbers) | _bits(data[:, 74:106]) << 3
    return Taken(codes, _half(data, 0), _odd(data[:, 106:110]))


def _shifted(numbers: Numbers, down: Numbers) -> Bytes:
    """IQ1: -1, 0, 1 as 0, 1, 2 and a bit for groups of eight that are moved down."""
    return _sizes("IQ1_S", numbers) | np.repeat((down != 0).astype(np.uint8) << 2, 8, axis=1)


def _iq1_s(data: Bytes) -> Taken:
    words = _wide(data[:, 34:50], "<u2")
    numbers = data[:, 2:34] | _fields(words, (0, 3, 6, 9), 7) << 8
    parts = (2 * ((words >> 12) & 7) + 1).astype(np.int8)
    return Taken(_shifted(numbers, np.repeat(words >> 15, 4, axis=1)), _half(data, 0), parts)


def _iq1_m(data: Bytes) -> Taken:
    high, words = _pairs(data[:, 32:48]).astype(np.uint32), _wide(data[:, 48:56], "<u2")
    scale = ((words >> 12) << np.array([0, 4, 8, 12], np.uint32)).sum(1, keepdims=True).astype("<u2").view("<f2")
    parts = (2 * _fields(words, (0, 3, 6, 9), 7) + 1).astype(np.int8)
    return Taken(_shifted(data[:, :32] | (high & 7) << 8, high & 8), scale, parts)


TAKERS: dict[str, Callable[[Bytes], Taken]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q1_0": _q1_0, "Q2_0": _q2_0,
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "MXFP4": _mxfp4, "NVFP4": _nvfp4, "TQ1_0": _tq1_0, "TQ2_0": _tq2_0,
    "IQ1_S": _iq1_s, "IQ1_M": _iq1_m, "IQ2_XXS": _iq2_xxs, "IQ2_XS": _iq2_xs, "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs, "IQ3_S": _iq3_s,
    "I4_32": _i4, "I4_128": _i4, "I8_32": _i8, "I8_128": _i8, "F8_32": _f8, "F8_128": _f8,
}  # fmt: skip
