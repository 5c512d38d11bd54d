"""The convolution over the rows of a block in plain torch f32, one row at a time."""

from __future__ import annotations

from torch import Tensor

from strata_kernels.ops import Array


def check(x: Array, change: Array, base: Array) -> None:
    """Raises ValueError on unfitting shapes."""
    taps, width = base.shape[1], x.shape[1]
    groups = change.shape[1] // (2 * taps)
    fits = tuple(base.shape) == (2, taps, width) and change.shape[0] == x.shape[0]
    if not fits or not groups or change.shape[1] % (2 * taps) or width % groups:
        raise ValueError(f"block_conv: {change.shape[1]} changes and weights {list(base.shape)} for {width} channels")


def block_conv(x: Tensor, change: Tensor, base: Tensor, side: int, sequences: Tensor, out: Tensor) -> None:
    """out[r, c] = sum over t of (base[side, t, c] + change[r, side, t, c's group]) * x[r - t, c]."""
    count, width = x.shape
    taps = base.shape[1]
    changes = change.reshape(count, 2, taps, -1)
    each = width // changes.shape[-1]
    for row in range(count):
        total = (base[side, 0] + changes[row, side, 0].repeat_interleave(each)) * x[row]
        for t in range(1, taps):
            if t > row or sequences[row - t] != sequences[row]:
                break
            total = total + (base[side, t] + changes[row, side, t].repeat_interleave(each)) * x[row - t]
        out[row] = total
