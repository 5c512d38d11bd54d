"""Products of many rows (prompts) in matrix units: f16 inputs, each matrix and each row scaled to fit, f32 sums."""

import triton
import triton.language as tl

from strata_kernels.triton.unpack import load_cells, load_offsets, load_scales, unpack_value, widen


@triton.jit
def gemm_cells(
    x, back, words, pairs, bits, scales, parts, lows, low_parts, gain, curve, bias, out, rows,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr,
    BITS: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr, SCALE: tl.constexpr,
    LOW: tl.constexpr, OFFSET: tl.constexpr, FACTOR: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """out[r, n] = back[r] * sum over k of x[r, k] * w[n, k]; x f16 [R, K to whole 256] in the order of halve_rows.

    256 columns at a time: code i of all their cells is a tile [OUTS, 32], multiplied as it comes out of its plane.
    """
    G: tl.constexpr = K // 32
    CHUNKS: tl.constexpr = (K + 255) // 256
    HALVES: tl.constexpr = BLOCK == 16 or PART == 16
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    place = tl.where(r < rows, r, 0).to(tl.int64)[:, None] * (CHUNKS * 256)
    line = tl.where(n < N, n, N - 1).to(tl.int64)[:, None]
    c = tl.arange(0, 32)[None, :]
    larger = tl.load(gain)
    total = tl.zeros([ROWS, OUTS], tl.float32)
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
                scale = load_scales(scales, parts, at, part, there, SCALE, PART, FACTOR) * larger
                offset = load_offsets(lows, low_parts, scale, at, part, there, "none", OFFSET)
                if LOW == "zero":
                    offset = load_offsets(lows, low_parts, scale, at, part, there, LOW, OFFSET)
                elif LOW != "none":
                    offset += load_offsets(lows, low_parts, scale, at, part, there, LOW, 0) * larger
            for quarter in tl.static_range(4):
                value = unpack_value(word, more, pair, bit, curve, half * 4 + quarter, BITS, VALUE)
                weight = (value * scale + offset).to(tl.float16)
                given = tl.load(x + place + chunk * 256 + (half * 128 + quarter * 32) + c)
                total = tl.dot(given, tl.trans(weight), total)
    store_tile(total, back, gain, bias, out, r, rows, n, N, BIAS, ADD)


@triton.jit
def gemm_floats(
    x, back, values, gain, bias, out, rows,
    N: tl.constexpr, K: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr,
    WIDTH: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """The same for stored floats; x f16 [R, PADDED] in plain order, WIDTH columns at a time."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    place = tl.where(r < rows, r, 0).to(tl.int64)[:, None] * PADDED
    line = tl.where(n < N, n, N - 1).to(tl.int64)[:, None] * K
    larger = tl.load(gain)
    total = tl.zeros([ROWS, OUTS], tl.float32)
    for start in range(0, PADDED, WIDTH):
        k = start + tl.arange(0, WIDTH)[None, :]
        weight = (widen(tl.load(values + line + k, mask=k < K, other=0)) * larger).to(tl.float16)
        total = tl.dot(tl.load(x + place + k), tl.trans(weight), total)
    store_tile(total, back, gain, bias, out, r, rows, n, N, BIAS, ADD)


@triton.jit
def store_tile(total, back, gain, bias, out, r, rows, n, N: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr):
    """Undo the powers of two of rows and matrix, add what is to be added, store."""
    inside = (r < rows)[:, None] & (n < N)[None, :]
    total = total * tl.load(gain + 1) * tl.load(back + r, mask=r < rows, other=0.0)[:, None]
    if BIAS:
        total += tl.load(bias + n, mask=n < N, other=0.0)[None, :]
    at = out + r.to(tl.int64)[:, None] * N + n[None, :]
    if ADD:
        total += tl.load(at, mask=inside, other=0.0)
    tl.store(at, total, mask=inside)
