"""Recurrent layers in plain torch f32: short convolution, gated delta rule, gated norm, sigmoid gates.

One row at a time, like everything of the reference; the state of a sequence is updated in the order of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strata_kernels.ops import Array, DeltaRule, Rows
from strata_kernels.reference.dense import require_inside
from strata_kernels.reference.tensors import tensor

Activation = Callable[[Tensor], Tensor]

_ACTIVATIONS: dict[str, Activation] = {"silu": torch.nn.functional.silu, "sigmoid": torch.sigmoid}
_NORM_EPS = 1e-6  # under the root of the sum of squares of q and k


def activation(name: str) -> Activation:
    """The function of a name. Raises ValueError."""
    if name not in _ACTIVATIONS:
        raise ValueError(f"gated_norm: activation {name!r} is not one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def check_conv(x: Array, weight: Array, past: Array, dilation: int) -> None:
    """Raises ValueError unless x [R, C], weight [C, k] and past [S, at least (k - 1) * dilation, C] fit."""
    channels, kernel = tuple(weight.shape)
    short = past.shape[1] < (kernel - 1) * dilation
    if short or past.shape[2] != channels or x.shape[-1] != channels or dilation < 1:
        shapes = f"x {tuple(x.shape)}, weight {tuple(weight.shape)}, past {tuple(past.shape)}, dilation {dilation}"
        raise ValueError(f"short_conv of unfitting shapes: {shapes}")


def check_rule(inputs: tuple[Array, Array, Array], delta: DeltaRule, state: Array, rows: Rows, pending: Any) -> None:
    """Raises ValueError on unfitting shapes; `inputs`: qkv, a, b."""
    qkv, a, b = inputs
    delta.check()
    if rows.keep is not None or rows.fold is not None:
        if pending is None or rows.keep is None or rows.fold is None:
            raise ValueError("delta_rule: rows that are not certain need keep, fold and a place to wait")
        if pending.shape[0] != state.shape[0] or pending.shape[2] != delta.pending_width:
            raise ValueError(f"delta_rule of unfitting shapes: pending {tuple(pending.shape)}")
    count, heads = qkv.shape[0], delta.value_heads
    fits = tuple(qkv.shape) == (count, delta.channels) and tuple(a.shape) == tuple(b.shape) == (count, heads)
    if not fits or tuple(state.shape)[1:] != (heads, delta.key_width, delta.value_width):
        shapes = f"qkv {tuple(qkv.shape)}, a {tuple(a.shape)}, b {tuple(b.shape)}, state {tuple(state.shape)}"
        raise ValueError(f"delta_rule of unfitting shapes: {shapes}")


@dataclass(frozen=True)
class _Run:
    """The rows of one sequence: the first, how many, how many are certain, how many pending ones come before."""

    row: int
    count: int
    position: int
    slot: int
    keep: int
    fold: int


def _runs(rows: Rows, slots: int, most: int) -> list[_Run]:
    """The sequences of a step in order; `most`: rows that may be uncertain or pending. Raises IndexError."""
    sequences, places = tensor(rows.sequences).tolist(), _places(rows, slots)
    starts = [r for r in range(len(sequences)) if r == 0 or sequences[r] != sequences[r - 1]]
    found = []
    for row, end in zip(starts, [*starts[1:], len(sequences)], strict=True):
        slot, position = places[row]
        keep, fold = end - row, 0
        if rows.keep is not None and rows.fold is not None:
            keep = int(rows.keep[sequences[row]])
            fold = int(rows.fold[sequences[row]]) if position else 0
        if not (0 <= keep <= end - row <= keep + most and 0 <= fold <= min(most, position)):
            raise IndexError(f"recurrent state: {keep} certain rows of {end - row}, {fold} pending of {most}")
        found.append(_Run(row, end - row, position, slot, keep, fold))
    return found


def _places(rows: Rows, slots: int) -> list[tuple[int, int]]:
    """(state slot, position) of every row. Raises IndexError."""
    if rows.states is None:
        raise ValueError("a recurrent op needs the state slots of the sequences")
    states, sequences = tensor(rows.states), tensor(rows.sequences)
    message = "recurrent state: a sequence or slot number lies outside the states"
    require_inside(sequences, states.numel(), message)
    own = states[sequences.long()]
    require_inside(own, slots, message)
    positions = tensor(rows.positions).tolist()
    return list(zip(own.tolist(), positions, strict=True))


def short_conv(x: Tensor, weight: Tensor, past: Tensor, rows: Rows, out: Tensor, how: tuple[bool, int]) -> None:
    """See Ops.short_conv; `how`: (silu, dilation). The input of position p lies in row p % ring of its slot."""
    silu, dilation = how
    ring, kernel = past.shape[1], weight.shape[1]
    for row, target, (slot, position) in zip(x, out, _places(rows, past.shape[0]), strict=True):
        total = torch.zeros_like(row)
        for j in range(kernel):
            back = (kernel - 1 - j) * dilation
            if back <= position:
                total += weight[:, j] * (past[slot, (position - back) % ring] if back else row)
        target.copy_(torch.nn.functional.silu(total) if silu else total)
        if ring:
            past[slot, position % ring] = row


def delta_rule(
    inputs: tuple[Tensor, Tensor, Tensor],
    delta: DeltaRule,
    state: Tensor,
    rows: Rows,
    out: Tensor,
    pending: Tensor,
) -> None:
    """See Ops.delta_rule; `inputs`: qkv, a, b; a pending row is its k, v, a, b one after the other."""
    keys = delta.key_heads * delta.key_width
    lines = torch.cat([inputs[0][:, keys:], *inputs[1:]], 1)
    queries = inputs[0][:, :keys]
    for run in _runs(rows, state.shape[0], pending.shape[1]):
        own = state[run.slot]
        if run.position == 0:
            own.zero_()
        for i in range(run.fold):
            _take_up(own, None, pending[run.slot, i], delta)
        for i in range(run.count):
            if i == run.keep:
                own = own.clone()  # drafts go on by themselves
            row = run.row + i
            out[row] = _take_up(own, queries[row], lines[row], delta)
        if run.keep < run.count:
            pending[run.slot, : run.count - run.keep] = lines[run.row + run.keep : run.row + run.count]


def _take_up(matrices: Tensor, query: Tensor | None, line: Tensor, delta: DeltaRule) -> Tensor:
    """One row: matrices [Hv, Dk, Dv] in place; query [Hk Dk] or None, line: k, v, a, b -> [Hv, Dv]."""
    heads, keys, values = delta.value_heads, delta.key_heads * delta.key_width, delta.value_heads * delta.value_width
    k, v, a, b = (part.clone() for part in line.split([keys, values, heads, heads]))
    q = k if query is None else query.clone()
    q, k = (_unit(part.reshape(delta.key_heads, delta.key_width))[_key_head_of(delta)] for part in (q, k))
    forget = torch.exp(tensor(delta.decay) * torch.nn.functional.softplus(a + tensor(delta.dt_bias)))
    v = v.reshape(heads, delta.value_width)
    return _advance(matrices, (q * delta.key_width**-0.5, k, v), forget, torch.sigmoid(b))


def _key_head_of(delta: DeltaRule) -> Tensor:
    heads = torch.arange(delta.value_heads)
    return heads % delta.key_heads if delta.tiled else heads // (delta.value_heads // delta.key_heads)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _NORM_EPS)


def _advance(matrices: Tensor, qkv: tuple[Tensor, Tensor, Tensor], forget: Tensor, beta: Tensor) -> Tensor:
    """One row for all heads: matrices [Hv, Dk, Dv] in place; q, k [Hv, Dk], v [Hv, Dv] -> [Hv, Dv]."""
    q, k, v = qkv
    matrices.mul_(forget[:, None, None])
    change = beta[:, None] * (v - (matrices * k[:, :, None]).sum(1))
    matrices.add_(k[:, :, None] * change[:, None, :])
    return (matrices * q[:, :, None]).sum(1)


def gated_norm(x: Tensor, weight: Tensor, gate: Tensor, eps: float, act: Activation, out: Tensor) -> None:
    """out = rms_norm(x) * weight * act(gate)."""
    for row, factor, target in zip(x, gate, out, strict=True):
        row = row.clone()
        inverse = torch.rsqrt(row.square().mean(-1, keepdim=True) + eps)
        target.copy_(row * inverse * weight * act(factor.clone()))


def sigmoid_mul(x: Tensor, gate: Tensor, out: Tensor) -> None:
    """out = x * sigmoid(gate)."""
    for row, factor, target in zip(x, gate, out, strict=True):
        target.copy_(row * torch.sigmoid(factor.clone()))


def add_scaled(x: Tensor, gate: Tensor, out: Tensor) -> None:
    """out += sigmoid(gate) * x."""
    for row, factor, target in zip(x, gate, out, strict=True):
        target.add_(torch.sigmoid(factor.clone()) * row)
