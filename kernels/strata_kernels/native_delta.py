"""Records the ops of recurrent layers for the native library: short convolution, gated delta rule, gates.

NativeOps inherits them. The library finds out while it runs which rows belong to which sequence and where its state
lies (kernels/cpu/core/program_recurrent.cpp). Inside a slot the convolution keeps a ring of inputs, that of position p
in row p % ring, and the delta rule keeps a v-head's state as blocks of 32 columns (kernels/cpu/core/kernels.h); a
pending row is its keys, values, a and b.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from strata_kernels import binding
from strata_kernels.arrays import Seen, see
from strata_kernels.checks import apart, dense, same_or_apart
from strata_kernels.ops import Array, DeltaRule, Rows

_ACTIVATIONS = ("silu", "sigmoid")


class DeltaOps:
    """The recurrent part of the native ops; `_emit` is NativeOps's."""

    _emit: Callable[..., None]

    def __init__(self) -> None:
        self._taps: dict[tuple[int, tuple[int, ...]], tuple[Seen, Seen]] = {}

    def short_conv(
        self, x: Array, weight: Array, past: Array, rows: Rows, out: Array, silu: bool = True, dilation: int = 1
    ) -> None:
        """Depthwise causal convolution over each sequence's own past, then SiLU; `past` keeps the newest inputs.

        x, out [R, C]; weight [C, k], read once: its taps are copied; past [S, (k-1) dilation or more, C]. Running
        raises IndexError when a sequence's rows are not consecutive or its slot lies outside `past`.
        """
        source = dense(x, "short_conv x", (None, None))
        count, channels = source.shape
        factors = dense(weight, "short_conv weight", (channels, None))
        taps = factors.shape[1]
        if not taps or dilation < 1:
            raise ValueError(f"short_conv: {taps} taps with dilation {dilation}")
        kept = dense(past, "short_conv past", (None, None, channels))
        if kept.shape[1] < (taps - 1) * dilation:
            raise ValueError(f"short_conv: {kept.shape[1]} past rows for {taps} taps with dilation {dilation}")
        target = dense(out, "short_conv out", source.shape)
        apart(target, "short_conv", source, kept)
        where, slots = _where(rows, count, kept.shape[0])
        if count:
            numbers = (count, *slots, channels, taps, dilation, kept.shape[1])
            pointers = (*where, source, self._transposed(factors), kept if kept.count else None, target)
            self._emit(binding.SHORT_CONV, numbers, pointers, (target,), flags=binding.WITH_SILU * silu)

    def _transposed(self, weight: Seen) -> Seen:
        """The taps [k, C] of weight [C, k]: a vector register then holds one tap of many channels."""
        key = (weight.start, weight.shape)
        found = self._taps.get(key)
        if found is None:  # the source is kept too: its address is the key
            turned = np.ascontiguousarray(np.asarray(weight.array).T)
            found = self._taps[key] = (see(turned), weight)
        return found[0]

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
        """out [R, Hv, Dv] = the gated delta rule over each sequence's rows in order; `state` [S, Hv, Dk, Dv] moves on.

        qkv [R, 2 Hk Dk + Hv Dv]; a, b [R, Hv]; pending [S, N, P]. Running raises IndexError as `short_conv` does, and
        where more rows are uncertain, or to be folded, than `pending` has.
        """
        delta.check()
        key_heads, value_heads = delta.key_heads, delta.value_heads
        source = dense(qkv, "delta_rule qkv", (None, delta.channels))
        count = source.shape[0]
        gates = [dense(gate, f"delta_rule {name}", (count, value_heads)) for name, gate in (("a", a), ("b", b))]
        rates = [
            dense(rate, f"delta_rule {name}", (value_heads,))
            for name, rate in (("decay", delta.decay), ("dt_bias", delta.dt_bias))
        ]
        held = dense(state, "delta_rule state", (None, value_heads, delta.key_width, delta.value_width))
        target = dense(out, "delta_rule out", (count, value_heads, delta.value_width))
        apart(target, "delta_rule", source, held, *gates)
        where, slots = _where(rows, count, held.shape[0])
        most, waiting = _pending(rows, slots, delta, pending)
        if count:
            numbers = (count, *slots, key_heads, value_heads, delta.key_width, delta.value_width, 0, most)
            pointers = (*where, source, *gates, *rates, held, target, *waiting)
            self._emit(binding.DELTA_RULE, numbers, pointers, (target,), flags=binding.TILED_HEADS * delta.tiled)

    def gated_norm(self, x: Array, weight: Array, gate: Array, eps: float, activation: str, out: Array) -> None:
        """out = x * rsqrt(mean(x^2) + eps) * weight * activation(gate) over the last dimension; out may be x."""
        if activation not in _ACTIVATIONS:
            raise ValueError(f"gated_norm: activation {activation!r} is not one of {', '.join(_ACTIVATIONS)}")
        source = dense(x, "gated_norm x", (*x.shape[:-1], None))
        width = source.shape[-1]
        factors = dense(weight, "gated_norm weight", (width,))
        gates, target = dense(gate, "gated_norm gate", source.shape), dense(out, "gated_norm out", source.shape)
        same_or_apart(target, "gated_norm", source, gates)
        if source.count:
            numbers, pointers = (source.count // width, width), (source, factors, gates, target)
            flags = binding.WITH_SIGMOID * (activation == "sigmoid")
            self._emit(binding.GATED_NORM, numbers, pointers, (target,), (eps,), flags)

    def sigmoid_mul(self, x: Array, gate: Array, out: Array) -> None:
        """out = x * sigmoid(gate), all of one shape. out may be x or gate."""
        source = dense(x, "sigmoid_mul x", tuple(x.shape))
        gates, target = dense(gate, "sigmoid_mul gate", source.shape), dense(out, "sigmoid_mul out", source.shape)
        same_or_apart(target, "sigmoid_mul", source, gates)
        if source.count:
            self._emit(binding.SIGMOID_MUL, (source.count,), (source, gates, target), (target,))

    def add_scaled(self, x: Array, gate: Array, out: Array) -> None:
        """out [R, W] += sigmoid(gate [R, 1]) * x [R, W]."""
        source = dense(x, "add_scaled x", (None, None))
        gates = dense(gate, "add_scaled gate", (source.shape[0], 1))
        target = dense(out, "add_scaled out", source.shape)
        apart(target, "add_scaled", source, gates)
        if source.count:
            self._emit(binding.ADD_SCALED, source.shape, (source, gates, target), (target,))


def _pending(
    rows: Rows, slots: tuple[int, int], delta: DeltaRule, pending: Array | None
) -> tuple[int, tuple[Seen, ...]]:
    """How many rows may wait for the next step, their place, `keep` and `fold`; nothing where all rows are certain."""
    if rows.keep is None and rows.fold is None:
        return 0, ()
    if pending is None or rows.keep is None or rows.fold is None:
        raise ValueError("delta_rule: rows that are not certain need keep, fold and a place to wait")
    place = dense(pending, "delta_rule pending", (slots[0], None, delta.pending_width))
    keep, fold = (dense(part, name, (slots[1],), "i32") for part, name in ((rows.keep, "keep"), (rows.fold, "fold")))
    return (place.shape[1], (place, keep, fold)) if place.shape[1] else (0, ())


def _where(rows: Rows, count: int, slots: int) -> tuple[tuple[Seen, Seen, Seen], tuple[int, int]]:
    """Positions, sequences and state slots as the library reads them; numbers of slots and sequences."""
    if rows.states is None:
        raise ValueError("recurrent layers need rows with state slots; these rows have none")
    if not slots:
        raise ValueError("recurrent layers need at least one state slot")
    positions = dense(rows.positions, "positions", (count,), "i32")
    sequences = dense(rows.sequences, "sequences", (count,), "i32")
    states = dense(rows.states, "states", (None,), "i32")
    return (positions, sequences, states), (slots, states.count)
