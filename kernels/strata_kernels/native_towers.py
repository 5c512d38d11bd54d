"""Records the operations of image towers: layer norm, GELU, rows put among others."""

from __future__ import annotations

from collections.abc import Callable

from strata_kernels import binding
from strata_kernels.checks import apart, dense, same_or_apart
from strata_kernels.ops import Array

Emit = Callable[..., None]  # NativeOps._emit


def record_put_rows(emit: Emit, x: Array, index: Array, column: int, out: Array, add: bool) -> None:
    """out[r, W] (+)= x[index[r], column : column + W] where index[r] >= 0. Raises ValueError: columns outside x."""
    source = dense(x, "put_rows x", (None, None))
    target = dense(out, "put_rows out", (None, None))
    rows, width = target.shape
    which = dense(index, "put_rows index", (rows,), "i32")
    apart(target, "put_rows", source)
    if not 0 <= column <= source.shape[1] - width:
        raise ValueError(f"put_rows: {width} columns from {column} are not inside {source.shape[1]}")
    if target.count:
        numbers = (rows, width, *source.shape, column)
        emit(binding.PUT_ROWS, numbers, (source, which, target), (target,), flags=binding.ADD_TO_OUT * add)


def record_layer_norm(emit: Emit, x: Array, weight: Array, bias: Array, eps: float, out: Array) -> None:
    """out = (x - mean) * rsqrt(variance + eps) * weight + bias over the last dimension. out may be x."""
    source = dense(x, "layer_norm x", (None, None))
    rows, width = source.shape
    factors, offsets = (dense(a, f"layer_norm {n}", (width,)) for a, n in ((weight, "weight"), (bias, "bias")))
    target = dense(out, "layer_norm out", source.shape)
    same_or_apart(target, "layer_norm", source)
    if source.count:
        emit(binding.LAYER_NORM, (rows, width), (source, factors, offsets, target), (target,), (eps,))


def record_gelu(emit: Emit, x: Array, out: Array, tanh: bool) -> None:
    """out = x * Phi(x), exact or by the tanh approximation. out may be x."""
    source = dense(x, "gelu x", tuple(x.shape))
    target = dense(out, "gelu out", source.shape)
    same_or_apart(target, "gelu", source)
    if source.count:
        emit(binding.GELU, (source.count,), (source, target), (target,), flags=binding.TANH * tanh)
