"""Products of a few rows: sums in f32, in an order that does not depend on how many rows there are."""

import triton
import triton.language as tl

from strata_kernels.triton.unpack import load_cells, load_offsets, load_scales, unpack_value, widen


@triton.jit
def add_row(dot, whole_x, value, x, row, rows, at, inside, K: tl.constexpr, EVEN: tl.constexpr):
    """Sums of value * x and of x of one row, [outs, groups, 4] and [groups, 4], and four more columns of each group.

    EVEN: the row and all columns are there, so nothing need be put in the place of what is not.
    """
    if EVEN:
        given = tl.load(x + row * K + at)
    else:
        given = tl.load(x + row * K + at, mask=inside & (row < rows), other=0.0)
    return dot + value * given[None, :, :], whole_x + given


@triton.jit
def add_scaled(total, dot, whole_x, scale, offset, SIGNED: tl.constexpr):
    """Sums of scale * code * x and, with SIGNED, of offset * x: what codes are less is multiplied once a group."""
    total += dot * scale[:, :, None]
    if SIGNED:
        total += whole_x[None, :, :] * offset[:, :, None]
    return total


@triton.jit
def gemv_cells(
    x, words, pairs, bits, scales, parts, lows, low_parts, curve, bias, out, rows,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr, GROUPS: tl.constexpr,
    BITS: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr, SCALE: tl.constexpr,
    LOW: tl.constexpr, OFFSET: tl.constexpr, FACTOR: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """out[r, n] = sum over k of x[r, k] * w[n, k] of ROWS rows (1 or 2) and OUTS outputs a program."""
    G: tl.constexpr = K // 32
    HALVES: tl.constexpr = BLOCK == 16 or PART == 16
    SIGNED: tl.constexpr = (LOW != "none") or (OFFSET != 0)
    BLOCKS: tl.constexpr = K // BLOCK
    EVEN: tl.constexpr = (G % GROUPS == 0) and (ROWS == 1)  # of two rows sm_90 spills then
    first = tl.program_id(0) * ROWS
    n = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    n = tl.where(n < N, n, N - 1)  # what is computed twice is stored once
    wide = n.to(tl.int64)
    j = tl.arange(0, 4)
    sum0 = tl.zeros([OUTS, GROUPS, 4], tl.float32)
    sum1 = tl.zeros([OUTS, GROUPS, 4], tl.float32)
    for start in range(0, G, GROUPS):
        g = start + tl.arange(0, GROUPS)
        inside = (g < G)[None, :] & (n >= 0)[:, None]
        cells = (wide[:, None] * G + g[None, :])[:, :, None] * 4 + j[None, None, :]
        there = (g < G)[None, :, None] & (j >= 0)[None, None, :]
        if EVEN:  # all groups are there, which the compiler is told so
            inside = tl.full([OUTS, GROUPS], True, tl.int1)
            there = tl.full([1, GROUPS, 4], True, tl.int1)
        word, more, pair, bit = load_cells(words, pairs, bits, cells, j[None, None, :], there, BITS)
        column = g[:, None] * 32 + j[None, :]
        whole = (g < G)[:, None] & (j >= 0)[None, :]
        for half in tl.static_range(2):
            if half == 0 or HALVES:
                place = wide[:, None] * BLOCKS + (g[None, :] * 32 + half * 16) // BLOCK
                part = place
                if PART:
                    part = wide[:, None] * (K // PART) + (g[None, :] * 32 + half * 16) // PART
                scale = load_scales(scales, parts, place, part, inside, SCALE, PART, FACTOR)
                offset = scale
                if SIGNED:
                    offset = load_offsets(lows, low_parts, scale, place, part, inside, LOW, OFFSET)
                dot0 = tl.zeros([OUTS, GROUPS, 4], tl.float32)
                dot1 = tl.zeros([OUTS, GROUPS, 4], tl.float32)
                all0 = tl.zeros([GROUPS, 4], tl.float32)
                all1 = tl.zeros([GROUPS, 4], tl.float32)
            for quarter in tl.static_range(4):
                value = unpack_value(word, more, pair, bit, curve, half * 4 + quarter, BITS, VALUE)
                here = column + (half * 16 + quarter * 4)
                dot0, all0 = add_row(dot0, all0, value, x, first, rows, here, whole, K, EVEN)
                if ROWS > 1:
                    dot1, all1 = add_row(dot1, all1, value, x, first + 1, rows, here, whole, K, False)
            if half == 1 or HALVES:
                sum0 = add_scaled(sum0, dot0, all0, scale, offset, SIGNED)
                if ROWS > 1:
                    sum1 = add_scaled(sum1, dot1, all1, scale, offset, SIGNED)
    n = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    store_sum(fold(sum0), bias, out, first, rows, n, N, BIAS, ADD)
    if ROWS > 1:
        store_sum(fold(sum1), bias, out, first + 1, rows, n, N, BIAS, ADD)


@triton.jit
def gemv_floats(
    x, values, bias, out, rows,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr, WIDTH: tl.constexpr,
    BIAS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """The same for stored floats, WIDTH columns at a time."""
    first = tl.program_id(0) * ROWS
    n = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    start = tl.where(n < N, n, N - 1).to(tl.int64)[:, None] * K
    sum0 = tl.zeros([OUTS, WIDTH], tl.float32)
    sum1 = tl.zeros([OUTS, WIDTH], tl.float32)
    for begin in range(0, K, WIDTH):
        k = begin + tl.arange(0, WIDTH)
        value = widen(tl.load(values + start + k[None, :], mask=(k < K)[None, :], other=0))
        sum0 += value * tl.load(x + first * K + k, mask=k < K, other=0.0)[None, :]
        if ROWS > 1:
            x1 = tl.load(x + (first + 1) * K + k, mask=(k < K) & (first + 1 < rows), other=0.0)
            sum1 += value * x1[None, :]
    store_sum(tl.sum(sum0, axis=1), bias, out, first, rows, n, N, BIAS, ADD)
    if ROWS > 1:
        store_sum(tl.sum(sum1, axis=1), bias, out, first + 1, rows, n, N, BIAS, ADD)


@triton.jit
def fold(sums):
    """Partial sums [outs, groups, 4] in one order."""
    return tl.sum(tl.sum(sums, axis=2), axis=1)


@triton.jit
def store_sum(total, bias, out, row, rows, n, N: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr):
    """Put the sums [outs] of one row into it."""
    inside = (n < N) & (row < rows)
    if BIAS:
        total += tl.load(bias + n, mask=n < N, other=0.0)
    at = out + row.to(tl.int64) * N + n
    if ADD:
        total += tl.load(at, mask=inside, other=0.0)
    tl.store(at, total, mask=inside)
