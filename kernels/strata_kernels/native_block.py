"""Records the operation of drafters that work on blocks: a convolution over the rows of each block."""

from __future__ import annotations

from collections.abc import Callable

from strata_kernels import binding
from strata_kernels.checks import apart, dense
from strata_kernels.ops import Array, Rows

Emit = Callable[..., None]  # NativeOps._emit


def record_block_conv(emit: Emit, x: Array, change: Array, base: Array, side: int, rows: Rows, out: Array) -> None:
    """See Ops.block_conv. Raises ValueError on unfitting shapes."""
    source = dense(x, "block_conv x", (None, None))
    count, width = source.shape
    weights = dense(base, "block_conv base", (2, None, width))
    taps = weights.shape[1]
    more = dense(change, "block_conv change", (count, None))
    groups = more.shape[1] // (2 * taps)
    if not groups or more.shape[1] % (2 * taps) or width % groups or side not in (0, 1):
        raise ValueError(f"block_conv: {more.shape[1]} changes of side {side} for {taps} taps of {width} channels")
    sequences = dense(rows.sequences, "block_conv sequences", (count,), "i32")
    target = dense(out, "block_conv out", source.shape)
    apart(target, "block_conv", source, more, weights)
    if count:
        numbers = (count, width, taps, groups, side)
        emit(binding.BLOCK_CONV, numbers, (source, more, weights, sequences, target), (target,))
