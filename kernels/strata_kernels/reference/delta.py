"""Recurrent layers in plain torch f32: short convolution, gated delta rule, gated norm, sigmoid gates.

One row at a time, like everything of the reference; the state of a sequence is updated in the order of its rows.
"""

from __future__ import annotations

from collections.abc import Callable

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
    """Raises ValueError unless x [R, C], weight [C, k] and past [S, (k - 1) * dilation, C] fit."""
    channels, kernel = tuple(weight.shape)
    if tuple(past.shape)[1:] != ((kernel - 1) * dilation, channels) or x.shape[-1] != channels or dilation < 1:
        shapes = f"x {tuple(x.shape)}, weight {tuple(weight.shape)}, past {tuple(past.shape)}, dilation {dilation}"
        raise ValueError(f"short_conv of unfitting shapes: {shapes}")


def check_rule(qkv: Array, a: Array, b: Array, delta: DeltaRule, state: Array) -> None:
    """Raises ValueError on unfitting shapes."""
    delta.check()
    rows, heads = qkv.shape[0], delta.value_heads
    fits = tuple(qkv.shape) == (rows, delta.channels) and tuple(a.shape) == tuple(b.shape) == (rows, heads)
    if not fits or tuple(state.shape)[1:] != (heads, delta.key_width, delta.value_width):
        shapes = f"qkv {tuple(qkv.shape)}, a {tuple(a.shape)}, b {tuple(b.shape)}, state {tuple(state.shape)}"
        raise ValueError(f"delta_rule of unfitting shapes: {shapes}")


def _places(rows: Rows, slots: int) -> list[tuple[int, bool]]:
    """(state slot, does the sequence begin here) of every row. Raises IndexError."""
    if rows.states is None:
        raise ValueError("a recurrent op needs the state slots of the sequences")
    states, sequences = tensor(rows.states), tensor(rows.sequences)
    message = "recurrent state: a sequence or slot number lies outside the states"
    require_inside(sequences, states.numel(), message)
    own = states[sequences.long()]
    require_inside(own, slots, message)
    positions = tensor(rows.positions).tolist()
    return [(slot, position == 0) for slot, position in zip(own.tolist(), positions, strict=True)]


def short_conv(x: Tensor, weight: Tensor, past: Tensor, rows: Rows, out: Tensor, how: tuple[bool, int]) -> None:
    """See Ops.short_conv; `how`: (silu, dilation). Inside a slot the oldest input comes first."""
    silu, dilation = how
    for row, target, (slot, begins) in zip(x, out, _places(rows, past.shape[0]), strict=True):
        own = past[slot]
        if begins:
            own.zero_()
        window = torch.cat([own, row[None]])
        total = torch.zeros_like(row)
        for j in range(weight.shape[1]):
            total += weight[:, j] * window[j * dilation]
        target.copy_(torch.nn.functional.silu(total) if silu else total)
        own.copy_(window[1:])


def delta_rule(inputs: tuple[Tensor, Tensor, Tensor], delta: DeltaRule, state: Tensor, rows: Rows, out: Tensor) -> None:
    """See Ops.delta_rule; `inputs`: qkv, a, b."""
    keys, values = delta.key_heads * delta.key_width, delta.value_heads * delta.value_width
    order = _key_head_of(delta)
    decay, bias = tensor(delta.decay), tensor(delta.dt_bias)
    for row, (slot, begins) in enumerate(_places(rows, state.shape[0])):
        qkv, a, b = (part[row].clone() for part in inputs)
        q, k, v = qkv.split([keys, keys, values])
        q, k = (_unit(part.reshape(delta.key_heads, delta.key_width))[order] for part in (q, k))
        if begins:
            state[slot].zero_()
        forget = torch.exp(decay * torch.nn.functional.softplus(a + bias))
        v = v.reshape(delta.value_heads, delta.value_width)
        out[row] = _advance(state[slot], (q * delta.key_width**-0.5, k, v), forget, torch.sigmoid(b))


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
