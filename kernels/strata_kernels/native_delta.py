"""Recurrent ops of the native library: not there yet, and said so by name."""

from __future__ import annotations

from typing import NoReturn

from strata_kernels.ops import Array, DeltaRule, Rows


class DeltaOps:
    """Short convolution, gated delta rule, gated norm and sigmoid gates, as NativeOps offers them."""

    def short_conv(
        self,
        x: Array,
        weight: Array,
        past: Array,
        rows: Rows,
        out: Array,
        silu: bool = True,
        dilation: int = 1,
    ) -> None:
        """See Ops.short_conv."""
        _missing("short_conv")

    def delta_rule(
        self, qkv: Array, a: Array, b: Array, delta: DeltaRule, state: Array, rows: Rows, out: Array
    ) -> None:
        """See Ops.delta_rule."""
        _missing("delta_rule")

    def gated_norm(self, x: Array, weight: Array, gate: Array, eps: float, activation: str, out: Array) -> None:
        """See Ops.gated_norm."""
        _missing("gated_norm")

    def sigmoid_mul(self, x: Array, gate: Array, out: Array) -> None:
        """See Ops.sigmoid_mul."""
        _missing("sigmoid_mul")

    def add_scaled(self, x: Array, gate: Array, out: Array) -> None:
        """See Ops.add_scaled."""
        _missing("add_scaled")


def _missing(name: str) -> NoReturn:
    raise RuntimeError(f"the native kernels have no {name} yet; load with --kernels reference")
