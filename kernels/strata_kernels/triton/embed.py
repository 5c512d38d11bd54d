"""Rows of a table by their numbers, as f32."""

import triton
import triton.language as tl

from strata_kernels.triton.unpack import as_float, load_cells, load_offsets, load_scales, unpack_value, widen


@triton.jit
def embed_floats(ids, values, out, N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    """out[r] = row ids[r] of a table of floats; NaN for a number that is no row's."""
    row = tl.program_id(0).to(tl.int64)
    number = tl.load(ids + row).to(tl.int64)
    known = (number >= 0) & (number < N)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = widen(tl.load(values + tl.where(known, number, 0) * K + k, mask=k < K, other=0))
    tl.store(out + row * K + k, tl.where(known, value, float("nan")), mask=k < K)


@triton.jit
def embed_cells(
    ids, words, pairs, bits, scales, parts, lows, low_parts, curve, out,
    N: tl.constexpr, K: tl.constexpr, GROUPS: tl.constexpr,
    BITS: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr, SCALE: tl.constexpr,
    LOW: tl.constexpr, OFFSET: tl.constexpr, FACTOR: tl.constexpr,
):  # fmt: skip
    """out[r] = row ids[r] of a table in cells; NaN for a number that is no row's. GROUPS groups of 32 a program."""
    G: tl.constexpr = K // 32
    row = tl.program_id(0).to(tl.int64)
    number = tl.load(ids + row).to(tl.int64)
    known = (number >= 0) & (number < N)
    number = tl.where(known, number, 0)
    g = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)[:, None]
    j = tl.arange(0, 4)[None, :]
    there = (g < G) & (j >= 0)
    cells = (number * G + g) * 4 + j
    word, more, pair, bit = load_cells(words, pairs, bits, cells, j, there, BITS)
    for half in tl.static_range(2):
        place = number * (K // BLOCK) + (g * 32 + half * 16) // BLOCK
        part = place
        if PART:
            part = number * (K // PART) + (g * 32 + half * 16) // PART
        scale = load_scales(scales, parts, place, part, g < G, SCALE, PART, FACTOR)
        low = load_offsets(lows, low_parts, scale, place, part, g < G, LOW, 0)
        if LOW == "zero":  # scale * (code - zero) rounds once
            low = as_float(tl.load(lows + place, mask=g < G, other=0).to(tl.int32))
        for quarter in tl.static_range(4):
            value = unpack_value(word, more, pair, bit, curve, half * 4 + quarter, BITS, VALUE) - OFFSET
            if LOW == "zero":
                value = scale * (value - low)
            else:
                value = scale * value + low
            at = out + row * K + g * 32 + (half * 16 + quarter * 4) + j
            tl.store(at, tl.where(known, value, float("nan")), mask=there)
