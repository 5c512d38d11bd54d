"""Products of chosen experts with few rows: each program finds its matrices by their addresses.

A tile is LINES lines of matrices, each of its own address and row, by GROUPS groups of 32 columns.
"""

import triton
import triton.language as tl

from strata_kernels.triton.gates import sigmoid
from strata_kernels.triton.unpack import load_cells, load_offsets, load_scales, unpack_value, widen


@triton.jit
def section(base, AT: tl.constexpr, KIND: tl.constexpr):
    """Pointers to elements of type KIND, AT bytes after these addresses of packed matrices."""
    address = base + AT
    if KIND == "f32":
        start = address.to(tl.pointer_type(tl.float32))
    elif KIND == "f16":
        start = address.to(tl.pointer_type(tl.float16))
    elif KIND == "i16":
        start = address.to(tl.pointer_type(tl.int16))
    elif KIND == "i32":
        start = address.to(tl.pointer_type(tl.int32))
    elif KIND == "u8":
        start = address.to(tl.pointer_type(tl.uint8))
    else:
        start = address.to(tl.pointer_type(tl.int8))
    return start


@triton.jit
def inputs(x, columns, line, k, mask, K: tl.constexpr, ORDERED: tl.constexpr):
    """x at the columns k; with ORDERED at those that columns[line] names."""
    if ORDERED:
        return tl.load(x + tl.load(columns + line * K + k, mask=mask, other=0), mask=mask, other=0.0)
    return tl.load(x + k, mask=mask, other=0.0)


@triton.jit
def cells_dot(
    x, columns, expert, base, n, curve, there, K: tl.constexpr, LINES: tl.constexpr, GROUPS: tl.constexpr,
    ORDERED: tl.constexpr, BITS: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr,
    SCALE: tl.constexpr, LOW: tl.constexpr, OFFSET: tl.constexpr, FACTOR: tl.constexpr, WORDS: tl.constexpr,
    PAIRS: tl.constexpr, MARKS: tl.constexpr, SCALES: tl.constexpr, PARTS: tl.constexpr, LOWS: tl.constexpr,
    LOW_PARTS: tl.constexpr
):  # fmt: skip
    """[LINES]: row n of the matrix at `base` times x, where `there`; x, expert, base, n, there are [LINES, 1, 1].

    x and expert may be [1, 1, 1]: the same for all lines.
    """
    G: tl.constexpr = K // 32
    HALVES: tl.constexpr = BLOCK == 16 or PART == 16
    SIGNED: tl.constexpr = (LOW != "none") or (OFFSET != 0)
    words, pairs, bits = section(base, WORDS, "i32"), section(base, PAIRS, "i16"), section(base, MARKS, "u8")
    scales = section(base, SCALES, "u8" if SCALE == "e8m0" else SCALE)
    parts, low_parts = section(base, PARTS, "i8"), section(base, LOW_PARTS, "u8")
    lows = section(base, LOWS, "i8" if LOW == "zero" else "f16")
    total = tl.zeros([LINES, GROUPS, 4], tl.float32)
    j = tl.arange(0, 4)[None, None, :]
    for start in range(0, G, GROUPS):
        g = start + tl.arange(0, GROUPS)[None, :, None]
        inside = there & (g < G)
        whole = (g < G) & (j >= 0)
        cells = (n * G + g) * 4 + j
        word, more, pair, bit = load_cells(words, pairs, bits, cells, j, inside & (j >= 0), BITS)
        for half in tl.static_range(2):
            if half == 0 or HALVES:
                place = n * (K // BLOCK) + (g * 32 + half * 16) // BLOCK
                part = place
                if PART:
                    part = n * (K // PART) + (g * 32 + half * 16) // PART
                scale = load_scales(scales, parts, place, part, inside, SCALE, PART, FACTOR)
                offset = scale
                if SIGNED:
                    offset = load_offsets(lows, low_parts, scale, place, part, inside, LOW, OFFSET)
                dot = tl.zeros([LINES, GROUPS, 4], tl.float32)
            for quarter in tl.static_range(4):
                value = unpack_value(word, more, pair, bit, curve, half * 4 + quarter, BITS, VALUE)
                k = g * 32 + (half * 16 + quarter * 4) + j
                given = inputs(x, columns, expert, k, whole, K, ORDERED)
                dot += value * given
                if quarter == 0 and (half == 0 or HALVES):
                    sums = given
                else:
                    sums += given
            if half == 1 or HALVES:
                total += dot * scale
                if SIGNED:
                    total += sums * offset
    return tl.sum(tl.sum(total, axis=2), axis=1)


@triton.jit
def floats_dot(
    x, columns, expert, base, n, there, K: tl.constexpr, LINES: tl.constexpr, GROUPS: tl.constexpr,
    ORDERED: tl.constexpr, KIND: tl.constexpr
):  # fmt: skip
    """The same for stored floats of type KIND."""
    values = section(base, 0, KIND)
    total = tl.zeros([LINES, GROUPS, 32], tl.float32)
    for start in range(0, K, GROUPS * 32):
        k = start + tl.arange(0, GROUPS)[None, :, None] * 32 + tl.arange(0, 32)[None, None, :]
        value = widen(tl.load(values + n * K + k, mask=there & (k < K), other=0))
        total += value * inputs(x, columns, expert, k, k < K, K, ORDERED)
    return tl.sum(tl.sum(total, axis=2), axis=1)


@triton.jit
def lines_dot(
    x, columns, expert, base, n, curve, there, K: tl.constexpr, LINES: tl.constexpr, GROUPS: tl.constexpr,
    ORDERED: tl.constexpr, KIND: tl.constexpr, BITS: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr,
    PART: tl.constexpr, SCALE: tl.constexpr, LOW: tl.constexpr, OFFSET: tl.constexpr, FACTOR: tl.constexpr,
    WORDS: tl.constexpr, PAIRS: tl.constexpr, MARKS: tl.constexpr, SCALES: tl.constexpr, PARTS: tl.constexpr,
    LOWS: tl.constexpr, LOW_PARTS: tl.constexpr
):  # fmt: skip
    """Either of the two: KIND is the type of stored floats, "cells" for codes."""
    if KIND == "cells":
        return cells_dot(
            x, columns, expert, base, n, curve, there, K, LINES, GROUPS, ORDERED, BITS, VALUE, BLOCK, PART, SCALE, LOW,
            OFFSET, FACTOR, WORDS, PAIRS, MARKS, SCALES, PARTS, LOWS, LOW_PARTS
        )  # fmt: skip
    return floats_dot(x, columns, expert, base, n, there, K, LINES, GROUPS, ORDERED, KIND)


@triton.jit
def expert_hidden(
    x, ids, gates, ups, columns, curve, hidden, N: tl.constexpr, K: tl.constexpr, TOP: tl.constexpr,
    MODE: tl.constexpr, LINES: tl.constexpr, GROUPS: tl.constexpr, ORDERED: tl.constexpr, KIND: tl.constexpr,
    BITS: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr, SCALE: tl.constexpr,
    LOW: tl.constexpr, OFFSET: tl.constexpr, FACTOR: tl.constexpr, WORDS: tl.constexpr, PAIRS: tl.constexpr,
    MARKS: tl.constexpr, SCALES: tl.constexpr, PARTS: tl.constexpr, LOWS: tl.constexpr, LOW_PARTS: tl.constexpr
):  # fmt: skip
    """hidden[pair, n] = silu(gate x) * up x, LINES of them a program.

    MODE "both"; where the matrices are of different types "gate" stores gate x, "up" takes it from there.
    """
    pair = tl.program_id(0)
    expert = tl.load(ids + pair).to(tl.int64)
    n = tl.program_id(1) * LINES + tl.arange(0, LINES)
    line = n.to(tl.int64)[:, None, None]
    there = (n < N)[:, None, None]
    given = x + (pair // TOP).to(tl.int64) * K
    at = hidden + pair.to(tl.int64) * N + n
    gate = tl.zeros([LINES], tl.float32)
    if MODE == "up":
        gate = tl.load(at, mask=n < N, other=0.0)
    else:
        gate = lines_dot(
            given, columns, expert, tl.load(gates + expert), line, curve, there, K, LINES, GROUPS, ORDERED, KIND, BITS,
            VALUE, BLOCK, PART, SCALE, LOW, OFFSET, FACTOR, WORDS, PAIRS, MARKS, SCALES, PARTS, LOWS, LOW_PARTS
        )  # fmt: skip
    if MODE != "gate":
        up = lines_dot(
            given, columns, expert, tl.load(ups + expert), line, curve, there, K, LINES, GROUPS, ORDERED, KIND, BITS,
            VALUE, BLOCK, PART, SCALE, LOW, OFFSET, FACTOR, WORDS, PAIRS, MARKS, SCALES, PARTS, LOWS, LOW_PARTS
        )  # fmt: skip
        gate = gate * sigmoid(gate) * up
    tl.store(at, gate, mask=n < N)


@triton.jit
def expert_down(
    hidden, ids, weights, downs, columns, curve, out, N: tl.constexpr, K: tl.constexpr, TOP: tl.constexpr,
    ADD: tl.constexpr, CHOICES: tl.constexpr, LINES: tl.constexpr, GROUPS: tl.constexpr, ORDERED: tl.constexpr,
    KIND: tl.constexpr, BITS: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr,
    SCALE: tl.constexpr, LOW: tl.constexpr, OFFSET: tl.constexpr, FACTOR: tl.constexpr, WORDS: tl.constexpr,
    PAIRS: tl.constexpr, MARKS: tl.constexpr, SCALES: tl.constexpr, PARTS: tl.constexpr, LOWS: tl.constexpr,
    LOW_PARTS: tl.constexpr
):  # fmt: skip
    """out[row, n] = sum over the row's choices of weight * (down hidden); all choices at once: CHOICES of each n."""
    OUTS: tl.constexpr = LINES // CHOICES
    row = tl.program_id(0)
    line = tl.arange(0, LINES)
    choice = line % CHOICES
    n = (tl.program_id(1) * OUTS + line // CHOICES).to(tl.int64)
    used = (choice < TOP) & (n < N)
    pair = row.to(tl.int64) * TOP + tl.where(choice < TOP, choice, 0)
    expert = tl.load(ids + pair).to(tl.int64)
    base = tl.load(downs + expert)
    given = (hidden + pair * K)[:, None, None]
    results = lines_dot(
        given, columns, expert[:, None, None], base[:, None, None], n[:, None, None], curve, used[:, None, None], K,
        LINES, GROUPS, ORDERED, KIND, BITS, VALUE, BLOCK, PART, SCALE, LOW, OFFSET, FACTOR, WORDS, PAIRS, MARKS, SCALES,
        PARTS, LOWS, LOW_PARTS
    )  # fmt: skip
    results = tl.where(used, tl.load(weights + pair) * results, 0.0)
    total = tl.sum(tl.reshape(results, [OUTS, CHOICES]), axis=1)
    n = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    at = out + row.to(tl.int64) * N + n
    if ADD:
        total = tl.load(at, mask=n < N, other=0.0) + total
    tl.store(at, total, mask=n < N)
