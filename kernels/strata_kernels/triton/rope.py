"""Rotary embedding."""

import triton
import triton.language as tl

# pi / 2 in three parts of 14 bits: what remains is below 2^-43
PART_1 = tl.constexpr(12867 / 8192)
PART_2 = tl.constexpr(15786 / 134217728)
PART_3 = tl.constexpr(4363 / 4398046511104)


@triton.jit
def cos_sin(angle):
    """cos and sin of f32 angles below 2^20, within 2e-7: exact products bring them into -pi/4..pi/4.

    The library's own take any angle, in several hundred instructions and with a table in memory.
    """
    turns = (angle * 0.6366197723675814 + 12582912.0) - 12582912.0  # to the nearest
    quadrant = turns.to(tl.int32)
    upper, lower = (quadrant >> 10).to(tl.float32) * 1024.0, (quadrant & 1023).to(tl.float32)
    r = angle - upper * PART_1
    r = r - lower * PART_1
    r = r - upper * PART_2
    r = r - lower * PART_2
    r = r - turns * PART_3
    x = r * r
    sin = r + r * x * (-1 / 6 + x * (1 / 120 + x * (-1 / 5040 + x * (1 / 362880))))
    cos = 1.0 + x * (-1 / 2 + x * (1 / 24 + x * (-1 / 720 + x * (1 / 40320 + x * (-1 / 3628800)))))
    swap = (quadrant & 1) == 1
    own_cos, own_sin = tl.where(swap, sin, cos), tl.where(swap, cos, sin)
    return tl.where(((quadrant + 1) & 2) != 0, -own_cos, own_cos), tl.where((quadrant & 2) != 0, -own_sin, own_sin)


@triton.jit
def turned(first, second, angle, scale):
    """The pair (first, second) turned by `angle`, times `scale`."""
    cos, sin = cos_sin(angle)
    cos, sin = cos * scale, sin * scale
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def rope(
    x,
    positions,
    frequencies,
    axes,
    rows,
    scale,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
    ADJACENT: tl.constexpr,
    AXES: tl.constexpr,
    H: tl.constexpr,
    P: tl.constexpr,
):
    """Turn the first 2 PAIRS elements of each head of x [R, H, D] in place. Grid: rows, groups of H heads.

    AXES: pair i turns by positions[axes[i], row] of [3, R].
    """
    row = tl.program_id(0)
    i, head = tl.arange(0, P), tl.program_id(1) * H + tl.arange(0, H)
    if AXES:
        position = tl.load(positions + tl.load(axes + i, mask=i < PAIRS, other=0) * rows + row)
    else:
        position = tl.load(positions + row)
    angle = tl.load(frequencies + i, mask=i < PAIRS, other=0.0) * position.to(tl.float32)
    inside = (head < HEADS)[:, None] & (i < PAIRS)[None, :]
    at = row.to(tl.int64) * (HEADS * WIDTH) + head[:, None] * WIDTH
    if ADJACENT:
        one, other = at + 2 * i[None, :], at + 2 * i[None, :] + 1
    else:
        one, other = at + i[None, :], at + i[None, :] + PAIRS
    first, second = tl.load(x + one, mask=inside, other=0.0), tl.load(x + other, mask=inside, other=0.0)
    first, second = turned(first, second, angle[None, :], scale)
    tl.store(x + one, first, mask=inside)
    tl.store(x + other, second, mask=inside)
