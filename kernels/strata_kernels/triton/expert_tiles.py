"""Products of experts with many rows: tiles of an expert's rows in matrix units, f16 inputs and f32 sums.

The grid is an upper bound that follows from the shapes; programs behind the last tile end at once.
"""

import triton
import triton.language as tl

from strata_kernels.triton.experts import section
from strata_kernels.triton.gates import sigmoid
from strata_kernels.triton.unpack import load_cells, load_offsets, load_scales, unpack_value, widen


@triton.jit
def expert_tiles(
    x, back, order, tiles, table, curve, gate, out, N: tl.constexpr, K: tl.constexpr, PADDED: tl.constexpr,
    TOP: tl.constexpr, BY_SLOT: tl.constexpr, HIDDEN: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr,
    GAIN: tl.constexpr, KIND: tl.constexpr, BITS: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr,
    PART: tl.constexpr, SCALE: tl.constexpr, LOW: tl.constexpr, OFFSET: tl.constexpr, FACTOR: tl.constexpr,
    WORDS: tl.constexpr, PAIRS: tl.constexpr, MARKS: tl.constexpr, SCALES: tl.constexpr, PARTS: tl.constexpr,
    LOWS: tl.constexpr, LOW_PARTS: tl.constexpr
):  # fmt: skip
    """out[slot, n] = x[the slot's row, or the slot itself with BY_SLOT] times its expert's matrix.

    x f16 [rows, PADDED], as halve_rows makes it. With HIDDEN: silu(gate[slot, n]) times that.
    """
    tile = tl.program_id(0)
    if tile >= tl.load(tiles):
        return
    entry = tiles + 1 + 3 * tile
    base = tl.load(table + tl.load(entry))
    first, end = tl.load(entry + 1), tl.load(entry + 2)
    slot = first + tl.arange(0, ROWS)
    row = tl.where(slot < end, slot, first)
    if not BY_SLOT:
        row = tl.load(order + row) // TOP
    n = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    place = row.to(tl.int64)[:, None] * PADDED
    line = tl.where(n < N, n, N - 1).to(tl.int64)[:, None]
    gain = section(base, GAIN, "f32")
    total = tl.zeros([ROWS, OUTS], tl.float32)
    if KIND == "cells":
        total = cells_product(
            total, x, place, base, line, tl.load(gain), curve, K, BITS, VALUE, BLOCK, PART, SCALE, LOW, OFFSET, FACTOR,
            WORDS, PAIRS, MARKS, SCALES, PARTS, LOWS, LOW_PARTS
        )  # fmt: skip
    else:
        values, larger = section(base, 0, KIND), tl.load(gain)
        for start in range(0, PADDED, 32):
            k = start + tl.arange(0, 32)[None, :]
            weight = (widen(tl.load(values + line * K + k, mask=k < K, other=0)) * larger).to(tl.float16)
            total = tl.dot(tl.load(x + place + k), tl.trans(weight), total)
    inside = (slot < end)[:, None] & (n < N)[None, :]
    total = total * tl.load(gain + 1) * tl.load(back + row)[:, None]
    at = slot.to(tl.int64)[:, None] * N + n[None, :]
    if HIDDEN:
        opening = tl.load(gate + at, mask=inside, other=0.0)
        total = opening * sigmoid(opening) * total
    tl.store(out + at, total, mask=inside)


@triton.jit
def cells_product(
    total, x, place, base, line, larger, curve, K: tl.constexpr, BITS: tl.constexpr, VALUE: tl.constexpr,
    BLOCK: tl.constexpr, PART: tl.constexpr, SCALE: tl.constexpr, LOW: tl.constexpr, OFFSET: tl.constexpr,
    FACTOR: tl.constexpr, WORDS: tl.constexpr, PAIRS: tl.constexpr, MARKS: tl.constexpr, SCALES: tl.constexpr,
    PARTS: tl.constexpr, LOWS: tl.constexpr, LOW_PARTS: tl.constexpr
):  # fmt: skip
    """total [ROWS, OUTS] plus the rows at `place` times the lines of the matrix at `base`, 256 columns at a time."""
    G: tl.constexpr = K // 32
    CHUNKS: tl.constexpr = (K + 255) // 256
    HALVES: tl.constexpr = BLOCK == 16 or PART == 16
    words, pairs, bits = section(base, WORDS, "i32"), section(base, PAIRS, "i16"), section(base, MARKS, "u8")
    scales = section(base, SCALES, "u8" if SCALE == "e8m0" else SCALE)
    parts, low_parts = section(base, PARTS, "i8"), section(base, LOW_PARTS, "u8")
    lows = section(base, LOWS, "i8" if LOW == "zero" else "f16")
    c = tl.arange(0, 32)[None, :]
    for chunk in range(0, CHUNKS):
        g = chunk * 8 + c // 4
        there = g < G
        cells = line * (G * 4) + chunk * 32 + c
        word, more, pair, bit = load_cells(words, pairs, bits, cells, c % 4, there, BITS)
        for half in tl.static_range(2):
            if half == 0 or HALVES:
                at = line * (K // BLOCK) + (g * 32 + half * 16) // BLOCK
                part = at
                if PART:
                    part = line * (K // PART) + (g * 32 + half * 16) // PART
                scale = load_scales(scales, parts, at, part, there, SCALE, PART, FACTOR)
                offset = load_offsets(lows, low_parts, scale, at, part, there, LOW, OFFSET) * larger
                scale = scale * larger
            for quarter in tl.static_range(4):
                value = unpack_value(word, more, pair, bit, curve, half * 4 + quarter, BITS, VALUE)
                weight = (value * scale + offset).to(tl.float16)
                given = tl.load(x + place + chunk * 256 + (half * 128 + quarter * 32) + c)
                total = tl.dot(given, tl.trans(weight), total)
    return total
