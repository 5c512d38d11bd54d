"""ReferenceOps: plain torch f32 operations. Between `begin` and `end` calls are recorded, else they run at once.

Arrays are numpy's, as with the native operations; each call sees them as tensors over the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from strata_kernels import arrays
from strata_kernels.ops import Array, DeltaRule, Experts, KvLayer, Rotary, Rows, Step, Weight
from strata_kernels.reference import attention, block, dense, towers
from strata_kernels.reference import delta as recurrent
from strata_kernels.reference import experts as mixture
from strata_kernels.reference.streams import ReferenceStreamOps
from strata_kernels.reference.tensors import tensor
from strata_kernels.workspace import Workspace


class ReferenceStep:
    """Recorded calls; `run` makes them in order on what their buffers hold then."""

    def __init__(self, calls: list[Callable[[], None]]) -> None:
        self._calls = calls

    def run(self) -> None:
        """Execute every recorded call."""
        with torch.no_grad():
            for call in self._calls:
                call()


class ReferenceOps(ReferenceStreamOps):
    """Plain torch operations.

    `cache_dequantised` keeps the f32 form of every matrix multiplied so far (4 bytes a weight); without it each product
    decodes its matrix again. Values do not depend on the choice.
    """

    name = "reference"

    def __init__(self, cache_dequantised: bool = True) -> None:
        self._cache_dequantised = cache_dequantised
        self._matrices: dict[tuple[int, str, int, int], tuple[Weight, Tensor]] = {}
        self._workspace = Workspace()
        self._recording: list[Callable[[], None]] | None = None

    def pack(self, weight: Weight) -> Weight:
        """The weight itself: the reference multiplies the file's layout."""
        dense.require_file_layout(weight)
        return weight

    def take(self, *shape: int, dtype: str = "f32") -> NDArray[Any]:
        """Workspace array, uninitialised, valid until the enclosing scope ends."""
        return self._workspace.take(shape, dtype)

    zeros = staticmethod(arrays.zeros)
    host = staticmethod(arrays.host)
    constant = staticmethod(arrays.constant)

    def scope(self) -> AbstractContextManager[None]:
        """Everything taken inside is given back at the end."""
        return self._workspace.scope()

    def begin(self) -> None:
        """Start recording: calls are kept, not made. Raises RuntimeError when already recording."""
        if self._recording is not None:
            raise RuntimeError("a step is already being recorded")
        self._recording = []

    def end(self) -> Step:
        """Stop recording. Raises RuntimeError when nothing is being recorded."""
        if self._recording is None:
            raise RuntimeError("no step is being recorded")
        calls, self._recording = self._recording, None
        return ReferenceStep(calls)

    def _do(self, call: Callable[[], None]) -> None:
        if self._recording is not None:
            self._recording.append(call)
            return
        with torch.no_grad():
            call()

    def embed(self, ids: Array, table: Weight, out: Array) -> None:
        """out[R, W] = rows `ids` of `table`, dequantised."""
        self._do(partial(dense.embed, tensor(ids), table, tensor(out)))

    def rms_norm(self, x: Array, weight: Array, eps: float, out: Array) -> None:
        """out = x * rsqrt(mean(x^2) + eps) * weight over the last dimension."""
        self._do(partial(dense.rms_norm, tensor(x), tensor(weight), eps, tensor(out)))

    def linear(
        self,
        x: Array,
        weights: Sequence[Weight],
        outs: Sequence[Array],
        biases: Sequence[Array | None] | None = None,
        add: bool = False,
    ) -> None:
        """outs[i][R, N_i] (+)= x[R, K] @ weights[i].T (+ bias). Raises ValueError on unfitting shapes."""
        dense.check_outputs(x, weights, outs)
        for weight, out, bias in zip(weights, outs, biases or [None] * len(weights), strict=True):
            self._do(partial(self._linear, tensor(x), weight, tensor(out), None if bias is None else tensor(bias), add))

    def _linear(self, x: Tensor, weight: Weight, out: Tensor, bias: Tensor | None, add: bool) -> None:
        dense.linear(x, self._matrix(weight), out, bias, add)

    def _matrix(self, weight: Weight) -> Tensor:
        """The f32 matrix. The entry holds the weight too: its address is the key and must not be given to another."""
        key = (arrays.address(weight.data), weight.type, weight.rows, weight.cols)
        kept = self._matrices.get(key)
        if kept is not None:
            return kept[1]
        matrix = dense.dequantise(weight)
        if self._cache_dequantised:
            self._matrices[key] = (weight, matrix)
        return matrix

    def silu_mul(self, gate: Array, up: Array, out: Array) -> None:
        """out = silu(gate) * up."""
        self._do(partial(dense.silu_mul, tensor(gate), tensor(up), tensor(out)))

    def experts(self, x: Array, logits: Array, experts: Experts, out: Array, add: bool = False) -> None:
        """out[R, W] (+)= the weighted sum of each row's experts. Raises ValueError on unfitting shapes."""
        experts.check(x.shape[1])
        self._do(partial(mixture.experts, tensor(x), tensor(logits), experts, self._matrix, tensor(out), add))

    def add(self, a: Array, b: Array, out: Array) -> None:
        """out = a + b."""
        self._do(partial(_add, tensor(a), tensor(b), tensor(out)))

    def rope(self, x: Array, rows: Rows, rotary: Rotary) -> None:
        """Rotate x [R, H, D] in place by each row's position."""
        self._do(partial(dense.rope, tensor(x), tensor(rotary.positions(rows)), rotary))

    def kv_store(self, k: Array, v: Array, cache: KvLayer, rows: Rows) -> None:
        """Write k, v [R, K, D] into the cache."""
        self._do(partial(attention.kv_store, tensor(k), tensor(v), cache, rows))

    def attention(self, q: Array, cache: KvLayer, rows: Rows, scale: float, out: Array) -> None:
        """out[R, H, D] = softmax(scale q k^T) v over each row's visible positions."""
        self._do(partial(attention.attention, tensor(q), cache, rows, scale, tensor(out)))

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
        """out[R, C] = depthwise causal convolution (then silu). Raises ValueError on unfitting shapes."""
        recurrent.check_conv(x, weight, past, dilation)
        self._do(
            partial(recurrent.short_conv, tensor(x), tensor(weight), tensor(past), rows, tensor(out), (silu, dilation))
        )

    def delta_rule(
        self,
        qkv: Array,
        a: Array,
        b: Array,
        delta: DeltaRule,
        state: Array,
        rows: Rows,
        out: Array,
        pending: Array | None = None,
    ) -> None:
        """out[R, Hv, Dv]: the gated delta rule; updates `state`. Raises ValueError on unfitting shapes."""
        recurrent.check_rule((qkv, a, b), delta, state, rows, pending)
        inputs = tensor(qkv), tensor(a), tensor(b)
        waiting = torch.empty(state.shape[0], 0, delta.pending_width) if pending is None else tensor(pending)
        self._do(partial(recurrent.delta_rule, inputs, delta, tensor(state), rows, tensor(out), waiting))

    def gated_norm(self, x: Array, weight: Array, gate: Array, eps: float, activation: str, out: Array) -> None:
        """out = rms_norm(x) * weight * act(gate). Raises ValueError for an unknown activation."""
        act = recurrent.activation(activation)
        self._do(partial(recurrent.gated_norm, tensor(x), tensor(weight), tensor(gate), eps, act, tensor(out)))

    def sigmoid_mul(self, x: Array, gate: Array, out: Array) -> None:
        """out = x * sigmoid(gate)."""
        self._do(partial(recurrent.sigmoid_mul, tensor(x), tensor(gate), tensor(out)))

    def add_scaled(self, x: Array, gate: Array, out: Array) -> None:
        """out += sigmoid(gate) * x."""
        self._do(partial(recurrent.add_scaled, tensor(x), tensor(gate), tensor(out)))

    def gather(self, x: Array, index: Array, out: Array) -> None:
        """out[n, W] = x[index[n], W]."""
        self._do(partial(_gather, tensor(x), tensor(index), tensor(out)))

    def argmax(self, logits: Array, out: Array, share: Array | None = None) -> None:
        """out[R] = the lowest index of the maximum of each row of logits [R, V]; share[R] = its softmax."""
        self._do(partial(_argmax, tensor(logits), tensor(out), None if share is None else tensor(share)))

    def put_rows(self, x: Array, index: Array, column: int, out: Array, add: bool = False) -> None:
        """out[r] (+)= x[index[r], column : column + W] where index[r] >= 0. Raises ValueError: columns outside x."""
        if not 0 <= column <= x.shape[1] - out.shape[1]:
            raise ValueError(f"put_rows: {out.shape[1]} columns from {column} are not inside {x.shape[1]}")
        self._do(partial(towers.put_rows, tensor(x), tensor(index), column, tensor(out), add))

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float, out: Array) -> None:
        """out = (x - mean) * rsqrt(variance + eps) * weight + bias over the last dimension."""
        self._do(partial(towers.layer_norm, tensor(x), tensor(weight), tensor(bias), eps, tensor(out)))

    def gelu(self, x: Array, out: Array, tanh: bool = False) -> None:
        """out = x * Phi(x), exact or by the tanh approximation."""
        self._do(partial(towers.gelu, tensor(x), tensor(out), tanh))

    def block_conv(self, x: Array, change: Array, base: Array, side: int, rows: Rows, out: Array) -> None:
        """out = convolution over the rows of each sequence with weights of their own. Raises ValueError: shapes."""
        block.check(x, change, base)
        parts = tensor(x), tensor(change), tensor(base)
        self._do(partial(block.block_conv, *parts, side, tensor(rows.sequences), tensor(out)))


def _add(a: Tensor, b: Tensor, out: Tensor) -> None:
    out.copy_(a + b)


def _argmax(logits: Tensor, out: Tensor, share: Tensor | None) -> None:
    # torch's own promises no order among equals; a row of NaN gives 0, as the native kernels do
    most, count = logits.max(-1, keepdim=True).values, logits.shape[1]
    places = torch.arange(count).expand_as(logits).where(logits == most, count)
    out.copy_(places.min(-1).values % count)
    if share is not None:
        torch.exp(most[:, 0] - logits.logsumexp(-1), out=share)


def _gather(x: Tensor, index: Tensor, out: Tensor) -> None:
    dense.require_inside(index, x.shape[0], "gather: an index lies outside the rows")
    out.copy_(x[index.long()])
