"""Lays quantised matrices of safetensors checkpoints anew: from the parts of a layout to one of our own block types.

Whole matrices at a time with numpy, no loop over elements; values are exactly what the layout's own `unpack` gives.
Where groups do not divide into blocks of 32 columns, or their columns are scattered unevenly, the matrix becomes F32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata_engine.formats.quant.awq import AwqLayout
from strata_engine.formats.quant.compressed import IntLayout, PackedLayout
from strata_engine.formats.quant.fp8 import Fp8Layout
from strata_engine.formats.quant.gptq import GptqLayout
from strata_engine.formats.quant.layout import Layout, group_count
from strata_engine.formats.quant.own_block import type_for
from strata_engine.formats.quant.qqq import CHANNEL_NIBBLES, CHANNEL_RUN, GROUP_NIBBLES, GROUP_RUN, QqqLayout

Bytes = NDArray[np.uint8]
Parts = Mapping[str, NDArray[Any]]  # as stored; numpy has no bf16 and no 8-bit floats: u16 and u8 stand for them
_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble of a word -> column


@dataclass(frozen=True)
class Relaid:
    """A matrix [rows, cols] in a type that kernels multiply: `data` u8 [rows, bytes of a row].

    `order` i32 [cols]: column j of `data` is column order[j] of the matrix; None: as they are.
    """

    type: str
    data: Bytes
    order: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class _Coded:
    """W[n, k] = scales[n, g] * (codes[n, k] - zeros[n, g]), g the group of column k.

    codes: bytes of rows, `bits` 4 (two in a byte, the low half first) or 8 each. scales f32, zeros i16 [N, G]; groups
    i64 [K], or None: runs of `group_size` columns.
    """

    codes: Bytes
    bits: int
    scales: NDArray[np.float32]
    zeros: NDArray[np.int16]
    group_size: int
    groups: NDArray[np.int64] | None = None

    @property
    def cols(self) -> int:
        """K."""
        return self.codes.shape[1] * 8 // self.bits


def relay(layout: Layout, parts: Parts, keep_order: bool = True) -> Relaid:
    """The matrix of a layout's parts. Raises ValueError when they hold impossible numbers.

    `keep_order` False: columns must come out in order, at the price of F32 where groups are scattered.
    """
    if isinstance(layout, Fp8Layout):
        return _byte_floats(layout, parts)
    reader = _READERS[type(layout)]
    coded, order = _in_runs(reader(layout, parts))
    if coded.groups is None and (order is None or keep_order):
        kind = type_for("I4" if coded.bits == 4 else "I8", coded.group_size, coded.cols)
        if kind != "F32":
            return Relaid(kind, _blocks(coded, int(kind.rpartition("_")[2])), order)
    return Relaid("F32", _plain(coded, order))


def _in_runs(coded: _Coded) -> tuple[_Coded, NDArray[np.int32] | None]:
    """With the columns of each group side by side, and their order. `groups` stay where they do not fill equal runs."""
    if coded.groups is None:
        return coded, None
    usual = np.arange(coded.cols) // coded.group_size
    if np.array_equal(coded.groups, usual):
        return replace(coded, groups=None), None
    order = np.argsort(coded.groups, kind="stable")
    if not np.array_equal(coded.groups[order], usual):
        return coded, None
    codes = nibbles(coded.codes) if coded.bits == 4 else coded.codes
    codes = codes[:, order]
    codes = pairs(codes) if coded.bits == 4 else codes
    return replace(coded, codes=codes, groups=None), order.astype(np.int32)


def _blocks(coded: _Coded, block: int) -> Bytes:
    """u8 [N, bytes of a row] of I4 or I8."""
    rows, count = coded.codes.shape[0], coded.cols // block
    group = np.arange(count) * block // coded.group_size
    out = np.empty((rows, count, 5 + block * coded.bits // 8), np.uint8)
    out[..., :4] = coded.scales.astype("<f4")[:, group, None].view(np.uint8)
    zeros = coded.zeros if coded.bits == 4 else coded.zeros - np.int16(128)
    out[..., 4] = zeros.astype(np.int8).view(np.uint8)[:, group]
    out[..., 5:] = coded.codes.reshape(rows, count, -1)
    return out.reshape(rows, -1)


def _plain(coded: _Coded, order: NDArray[np.int32] | None) -> Bytes:
    """The values as f32, columns in their own order."""
    group = np.arange(coded.cols) // coded.group_size if coded.groups is None else coded.groups
    out = (nibbles(coded.codes) if coded.bits == 4 else coded.codes).astype(np.float32, order="C")
    out -= coded.zeros.astype(np.float32)[:, group]
    out *= coded.scales[:, group]
    if order is not None:
        back = np.empty_like(out)
        back[:, order] = out
        out = back
    return out.view(np.uint8)


# -- numbers in words -------------------------------------------------------------------------------------------------


def nibbles(packed: Bytes) -> Bytes:
    """u8 [N, m] -> [N, 2m]: the low half of each byte, then the high one."""
    out = np.empty((packed.shape[0], packed.shape[1] * 2), np.uint8)
    out[:, 0::2] = packed & 15
    out[:, 1::2] = packed >> 4
    return out


def pairs(codes: Bytes) -> Bytes:
    """Inverse of `nibbles`."""
    out = codes[:, 0::2].copy()
    out |= codes[:, 1::2] << 4
    return out


def _bytes_of(words: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(words).view(np.uint8).reshape(words.shape[0], -1)


def _dense(words: NDArray[Any], bits: int, count: int) -> Bytes:
    """i32 [R, W] -> u8 [R, count]: code i of a row is bits i*bits.. of its words taken as one bit string."""
    stored = _bytes_of(words)
    if bits == 8:
        return stored[:, :count]
    if bits == 4:
        return nibbles(stored)[:, :count]
    if bits == 2:
        out = np.empty((stored.shape[0], stored.shape[1] * 4), np.uint8)
        for place in range(4):
            out[:, place::4] = stored >> 2 * place & 3
        return out[:, :count]
    start = np.arange(count) * bits
    wide = np.concatenate([stored, np.zeros((stored.shape[0], 1), np.uint8)], 1).astype(np.uint16)
    two = wide[:, start // 8] | wide[:, start // 8 + 1] << 8  # a code may lie across two bytes
    return (two >> (start % 8).astype(np.uint16) & ((1 << bits) - 1)).astype(np.uint8)


def _codes(words: NDArray[Any], bits: int, count: int) -> tuple[Bytes, int]:
    """Rows of dense words as bytes of 4-bit or 8-bit codes, and which of the two."""
    if bits in (4, 8) and words.shape[1] * 32 == count * bits:
        return _bytes_of(words), bits  # two nibbles in a byte and bytes are what words of these bits are made of
    codes = _dense(words, bits, count)
    if bits > 4 or count % 2:
        return codes, 8
    return pairs(codes), 4


def singles(stored: NDArray[Any]) -> NDArray[np.float32]:
    """Stored f32, f16 or bf16 (u16) as f32."""
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def _checked(stored: NDArray[Any], count: int) -> NDArray[np.int64]:
    groups = stored.astype(np.int64)
    if groups.min() < 0 or groups.max() >= count:
        raise ValueError(f"group numbers are {groups.min()}..{groups.max()}, there are {count} groups")
    return groups


# -- layouts ----------------------------------------------------------------------------------------------------------


def _gptq(layout: GptqLayout, parts: Parts) -> _Coded:
    ins, outs = parts["qweight"].shape[0] * 32 // layout.bits, parts["qweight"].shape[1]
    codes, bits = _codes(parts["qweight"].T, layout.bits, ins)
    scales = np.ascontiguousarray(singles(parts["scales"]).T)
    zeros = np.full(scales.shape, 1 << (layout.bits - 1), np.int16)
    if "qzeros" in parts:
        stored = _dense(parts["qzeros"], layout.bits, outs).T.astype(np.int16)
        # code by code: adding one to whole words would carry out of a stored maximum into its neighbour
        zeros = (stored + int(layout.zeros_less_one)) & ((1 << layout.bits) - 1)
    groups = _checked(parts["g_idx"], scales.shape[1]) if "g_idx" in parts else None
    return _Coded(codes, bits, scales, zeros, _size(layout.group_size, ins), groups)


def _size(group_size: int, ins: int) -> int:
    return ins if group_size == -1 else group_size


def _awq(layout: AwqLayout, parts: Parts) -> _Coded:
    words = parts["qweight"].view(np.uint32)
    scales = np.ascontiguousarray(singles(parts["scales"]).T)
    zeros = np.full(scales.shape, 8, np.int16)
    if "qzeros" in parts:
        zeros = _awq_columns(parts["qzeros"].view(np.uint32)).T.astype(np.int16)
    ins = words.shape[0]
    if ins % 2:
        return _Coded(_awq_columns(words).T, 8, scales, zeros, _size(layout.group_size, ins))
    codes = np.empty((words.shape[1] * 8, ins // 2), np.uint8)
    for nibble, column in enumerate(_AWQ_COLUMNS):
        found = (words >> np.uint32(4 * nibble)).astype(np.uint8) & 15
        codes[column::8] = (found[0::2] | found[1::2] << 4).T  # inputs 2j and 2j+1 share a byte
    return _Coded(codes, 4, scales, zeros, _size(layout.group_size, ins))


def _awq_columns(words: NDArray[np.uint32]) -> Bytes:
    """[R, W] -> u8 [R, 8W], the nibbles of each word in the order of their columns."""
    out = np.empty((words.shape[0], words.shape[1] * 8), np.uint8)
    for nibble, column in enumerate(_AWQ_COLUMNS):
        out[:, column::8] = (words >> np.uint32(4 * nibble)).astype(np.uint8) & 15
    return out


def _qqq(layout: QqqLayout, parts: Parts) -> _Coded:
    per_channel = layout.group_size == -1
    words = parts["B"]
    tiles, outs = words.shape[0], words.shape[1] // 2
    codes = nibbles(_bytes_of(words)).reshape(tiles, -1, 8, 4, 4, 8)
    # [tile of inputs, tile of outputs, output in 8, four inputs, 16 outputs, block of 8 outputs, input of four]
    codes = codes[..., list(CHANNEL_NIBBLES if per_channel else GROUP_NIBBLES)].reshape(tiles, -1, 8, 4, 4, 2, 4)
    codes = codes.transpose(1, 4, 5, 2, 0, 3, 6).reshape(outs, tiles * 16)
    scales = _true_order(parts["s_channel"], CHANNEL_RUN).reshape(-1, 1)
    if per_channel:  # signed codes times 16: the scale takes the factor, which is a power of two
        return _Coded(pairs(codes ^ 8), 4, scales * 16, np.full(scales.shape, 8, np.int16), tiles * 16)
    steps = np.repeat(_true_order(parts["s_group"].astype(np.float32), GROUP_RUN).T, 128, 1)
    steps *= codes.astype(np.float32) - 8
    whole = np.clip(np.rint(steps), -128, 127).astype(np.int8)
    return _Coded(whole.view(np.uint8) ^ 128, 8, scales, np.full(scales.shape, 128, np.int16), tiles * 16)


def _true_order(scales: NDArray[Any], run: tuple[int, ...]) -> NDArray[np.float32]:
    """Undo the permutation: stored place p of a run belongs to output run[p]."""
    places = np.argsort(np.array(run))
    return scales.reshape(scales.shape[0], -1, len(run))[..., places].reshape(scales.shape)


def _packed(layout: PackedLayout, parts: Parts) -> _Coded:
    told = parts.get("weight_shape")
    outs, words = parts["weight_packed"].shape
    ins = words * 32 // layout.bits if told is None else int(told[1])
    codes, bits = _codes(parts["weight_packed"], layout.bits, ins)
    scales = singles(parts["weight_scale"]).reshape(outs, -1)
    zeros = _packed_zeros(parts.get("weight_zero_point"), layout.bits, scales.shape)
    groups = parts.get("weight_g_idx")
    if groups is None or bool((groups == -1).all()):  # -1 throughout: never set
        return _Coded(codes, bits, scales, zeros, _size(layout.group_size, ins))
    return _Coded(codes, bits, scales, zeros, _size(layout.group_size, ins), _checked(groups, scales.shape[1]))


def _packed_zeros(stored: NDArray[Any] | None, bits: int, shape: tuple[int, ...]) -> NDArray[np.int16]:
    """Offset as the codes are. Older files hold them as signed bytes, newer ones packed downwards."""
    middle = 1 << (bits - 1)
    if stored is None:
        return np.full(shape, middle, np.int16)
    if stored.dtype == np.int8:
        return stored.astype(np.int16) + np.int16(middle)
    return _dense(stored.T, bits, shape[0]).T.astype(np.int16)


def _integers(layout: IntLayout, parts: Parts) -> _Coded:
    outs, ins = parts["weight"].shape
    count = group_count(ins, layout.group_size)

    def spread(values: NDArray[Any]) -> NDArray[Any]:
        return np.broadcast_to(values.reshape(-1, count), (outs, count))

    zeros = np.full((outs, count), 128, np.int16)
    if "weight_zero_point" in parts:
        zeros = spread(parts["weight_zero_point"].astype(np.int16)) + np.int16(128)
    codes = parts["weight"].view(np.uint8) ^ np.uint8(128)
    return _Coded(codes, 8, spread(singles(parts["weight_scale"])), zeros, _size(layout.group_size, ins))


def _byte_floats(layout: Fp8Layout, parts: Parts) -> Relaid:
    codes = parts["weight"]
    rows, cols = codes.shape
    if bool(((codes & 0x7F) == 0x7F).any()):
        raise ValueError("a weight is not a number")
    scale = singles(parts[layout.scale])
    down, across = layout.block or (1, cols)
    scale = (
        np.broadcast_to(scale.reshape(-1, 1), (rows, 1)) if layout.block is None else np.repeat(scale, down, 0)[:rows]
    )
    kind = type_for("F8", -1 if layout.block is None else across, cols)
    if kind == "F32":
        halves = ((codes & 0x7F).astype(np.uint16) << 7 | (codes & 0x80).astype(np.uint16) << 8).view(np.float16)
        values = halves.astype(np.float32) * 256
        values *= np.repeat(scale, across, 1)[:, :cols]
        return Relaid(kind, values.view(np.uint8))
    block = int(kind.rpartition("_")[2])
    out = np.empty((rows, cols // block, 4 + block), np.uint8)
    out[..., :4] = np.ascontiguousarray(scale[:, np.arange(cols // block) * block // across, None], "<f4").view(
        np.uint8
    )
    out[..., 4:] = codes.reshape(rows, -1, block)
    return Relaid(kind, out.reshape(rows, -1))


_READERS: dict[type, Callable[[Any, Parts], _Coded]] = {
    GptqLayout: _gptq,
    AwqLayout: _awq,
    QqqLayout: _qqq,
    PackedLayout: _packed,
    IntLayout: _integers,
}
