"""Rotary embedding."""

import triton
import triton.language as tl


@triton.jit
def turned(first, second, angle, scale):
    """The pair (first, second) turned by `angle`, times `scale`."""
    cos, sin = tl.cos(angle) * scale, tl.sin(angle) * scale
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
