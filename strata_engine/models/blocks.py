"""The parts of a dense decoder: projections, attention with rotary positions and paged keys, gated MLP.

Each part calls only Ops on workspace it takes, adds its result to the residual stream `x`, and keeps nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strata_engine.core.batch import Batch
from strata_kernels.ops import Array, KvLayer, Ops, Rotary, Rows, Weight


@dataclass(frozen=True)
class Linear:
    """A matrix product and its optional bias."""

    weight: Weight
    bias: Array | None = None

    @property
    def rows(self) -> int:
        """Out-features."""
        return self.weight.rows


def apply_linears(x: Array, linears: tuple[Linear, ...], ops: Ops) -> list[Array]:
    """Several products of the same input, in one call so that the input is quantised once."""
    outs = [ops.take(x.shape[0], linear.rows) for linear in linears]
    biases = [linear.bias for linear in linears]
    ops.linear(x, [linear.weight for linear in linears], outs, biases if any(b is not None for b in biases) else None)
    return outs


def add_linear(x: Array, linear: Linear, residual: Array, ops: Ops) -> None:
    """residual += x @ weight.T (+ bias)."""
    biases = None if linear.bias is None else [linear.bias]
    ops.linear(x, [linear.weight], [residual], biases, add=True)


def pick_rows(x: Array, batch: Batch, ops: Ops) -> Array:
    """The rows of x [R, W] that want logits, [n, W]."""
    picked = ops.take(batch.logit_rows.shape[0], x.shape[1])
    ops.gather(x, batch.logit_rows, picked)
    return picked


def keep_final(x: Array, batch: Batch, ops: Ops) -> None:
    """The batch's `final` = x [R, F], where drafters want it."""
    if batch.final is not None:
        ops.gather(x, ops.constant(np.arange(batch.count, dtype=np.int32)), batch.final)


def keep_tap(x: Array, layer: int, batch: Batch, ops: Ops) -> None:
    """The batch's part of `taps` that belongs to `layer` = x [R, W], where drafters want it."""
    if batch.taps is None or layer not in batch.tap_layers:
        return
    taps, at = len(batch.tap_layers), batch.tap_layers.index(layer)
    # seen as rows of W elements, those of this layer are every so manieth
    source = np.full((batch.count, taps), -1, np.int32)
    source[:, at] = np.arange(batch.count, dtype=np.int32)
    ops.put_rows(x, ops.constant(source.reshape(-1)), 0, batch.taps.reshape(batch.count * taps, x.shape[1]))


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention. `q_norm`, `k_norm` [D]: norms over each head before the rotation, or None.

    `gate`: its sigmoid multiplies the result before `o`, or None.
    """

    norm: Array
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    q_norm: Array | None
    k_norm: Array | None
    head_width: int
    eps: float
    rotary: Rotary
    gate: Linear | None = None

    def forward(self, x: Array, cache: KvLayer, rows: Rows, ops: Ops) -> None:
        """x [R, W] += attention(norm(x)); stores the rows' keys and values on the way."""
        with ops.scope():
            normed = ops.take(*x.shape)
            ops.rms_norm(x, self.norm, self.eps, normed)
            add_linear(self.mix(normed, cache, rows, ops), self.o, x, ops)

    def mix(self, normed: Array, cache: KvLayer, rows: Rows, ops: Ops) -> Array:
        """The heads before `o` of normed rows, f32 [R, H D], in the workspace of the enclosing scope."""
        count, width = normed.shape[0], self.head_width
        linears = (self.q, self.k, self.v) if self.gate is None else (self.q, self.k, self.v, self.gate)
        q, k, v, *gates = (part.reshape(count, -1, width) for part in apply_linears(normed, linears, ops))
        if self.q_norm is not None:
            ops.rms_norm(q, self.q_norm, self.eps, q)
        ops.rope(q, rows, self.rotary)
        self.keep(k, v, cache, rows, ops)
        mixed = ops.take(*q.shape)
        ops.attention(q, cache, rows, width**-0.5, mixed)
        for gate in gates:
            ops.sigmoid_mul(mixed, gate, mixed)
        return mixed.reshape(count, -1)

    def keep(self, k: Array, v: Array, cache: KvLayer, rows: Rows, ops: Ops) -> None:
        """Norm and rotate keys [R, K, D] in place, and store them with their values."""
        if self.k_norm is not None:
            ops.rms_norm(k, self.k_norm, self.eps, k)
        ops.rope(k, rows, self.rotary)
        ops.kv_store(k, v, cache, rows)


@dataclass(frozen=True)
class Mlp:
    """down(silu(gate(x)) * up(x))."""

    norm: Array
    gate: Linear
    up: Linear
    down: Linear
    eps: float

    def forward(self, x: Array, ops: Ops) -> None:
        """x [R, W] += mlp(norm(x))."""
        with ops.scope():
            normed = ops.take(*x.shape)
            ops.rms_norm(x, self.norm, self.eps, normed)
            add_linear(self.inner(normed, ops), self.down, x, ops)

    def inner(self, normed: Array, ops: Ops) -> Array:
        """What `down` multiplies, of normed rows, in the workspace of the enclosing scope."""
        gate, up = apply_linears(normed, (self.gate, self.up), ops)
        ops.silu_mul(gate, up, gate)
        return gate
