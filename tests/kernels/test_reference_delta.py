"""The recurrent reference ops against direct f64 formulas; state goes on from step to step and slot to slot."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from strata_kernels.ops import DeltaRule, Rows
from strata_kernels.reference.ops import ReferenceOps
from tests.support.op_cases import random


def make_rows(places: list[tuple[int, int]], states: list[int]) -> Rows:
    """Rows for (sequence, position) pairs; `states`: slot of each sequence."""
    sequences, positions = (torch.tensor([p[i] for p in places], dtype=torch.int32) for i in (0, 1))
    pages = torch.zeros(len(states), 1, dtype=torch.int32)
    return Rows(positions, sequences, sequences * 0, pages, torch.tensor(states, dtype=torch.int32))


def chunks_of(total: int, sizes: list[int]) -> list[range]:
    """Consecutive ranges of these sizes."""
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    assert sum(sizes) == total
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def conv_oracle(x: Tensor, weight: Tensor, dilation: int, silu: bool) -> Tensor:
    """One sequence in f64 by torch's own convolution."""
    kernel = weight.shape[1]
    padded = torch.nn.functional.pad(x.double().T[None], ((kernel - 1) * dilation, 0))
    out = torch.nn.functional.conv1d(padded, weight.double()[:, None], groups=x.shape[1], dilation=dilation)[0].T
    return torch.nn.functional.silu(out) if silu else out


@pytest.mark.parametrize("sizes", [[11], [1, 2, 1, 7], [3, 8], [1] * 11], ids=str)
@pytest.mark.parametrize(("kernel", "dilation", "silu"), [(4, 1, True), (4, 3, False), (2, 1, True), (3, 2, True)])
def test_a_convolution_sees_the_same_past_in_any_chunks(kernel, dilation, silu, sizes):
    ops, x, weight = ReferenceOps(), random(11, 5, seed=1), random(5, kernel, seed=2)
    past, out = torch.full((3, (kernel - 1) * dilation, 5), float("nan")), torch.empty(11, 5)
    for part in chunks_of(11, sizes):
        piece = slice(part.start, part.stop)
        rows = make_rows([(0, t) for t in part], [1])
        ops.short_conv(x[piece].clone(), weight, past, rows, out[piece], silu, dilation)
    assert (out.double() - conv_oracle(x, weight, dilation, silu)).abs().max() < 1e-5
    assert past[0].isnan().all() and past[2].isnan().all()


def rule(heads: tuple[int, int], widths: tuple[int, int], tiled: bool) -> DeltaRule:
    decay, bias = -random(heads[1], seed=5).abs() - 0.01, random(heads[1], seed=6)
    return DeltaRule(decay, bias, *heads, *widths, tiled)


def delta_oracle(qkv: Tensor, a: Tensor, b: Tensor, delta: DeltaRule) -> Tensor:
    """One sequence in f64, head by head, straight from the formula."""
    keys = delta.key_heads * delta.key_width
    out = torch.zeros(qkv.shape[0], delta.value_heads, delta.value_width, dtype=torch.float64)
    for head in range(delta.value_heads):
        per = delta.value_heads // delta.key_heads
        key_head = head % delta.key_heads if delta.tiled else head // per
        at, width, wide = key_head * delta.key_width, delta.key_width, delta.value_width
        matrix = torch.zeros(width, wide, dtype=torch.float64)
        for t, row in enumerate(qkv.double()):
            q, k = row[at : at + width], row[keys + at : keys + at + width]
            v = row[2 * keys + head * wide : 2 * keys + (head + 1) * wide]
            q, k = (u / (u.square().sum() + 1e-6).sqrt() for u in (q, k))
            g = float(delta.decay[head]) * torch.nn.functional.softplus(a[t, head].double() + delta.dt_bias[head])
            matrix = matrix * g.exp()
            d = torch.sigmoid(b[t, head].double()) * (v - matrix.T @ k)
            matrix = matrix + torch.outer(k, d)
            out[t, head] = matrix.T @ q / width**0.5
    return out


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize(("heads", "widths"), [((1, 1), (4, 4)), ((2, 6), (8, 5)), ((3, 3), (5, 8))])
def test_the_delta_rule_is_its_formula(heads, widths, tiled):
    delta, ops = rule(heads, widths, tiled), ReferenceOps()
    qkv, a, b = random(9, delta.channels, seed=1), random(9, heads[1], seed=2), random(9, heads[1], seed=3)
    state, out = torch.full((2, heads[1], *widths), float("nan")), torch.empty(9, heads[1], widths[1])
    ops.delta_rule(qkv, a, b, delta, state, make_rows([(0, t) for t in range(9)], [1]), out)
    assert (out.double() - delta_oracle(qkv, a, b, delta)).abs().max() < 1e-5


def test_chunks_and_batch_mates_do_not_change_a_bit():
    delta, ops = rule((2, 4), (8, 8), False), ReferenceOps()
    qkv, a, b = random(12, delta.channels, seed=1), random(12, 4, seed=2), random(12, 4, seed=3)
    whole = torch.empty(12, 4, 8)
    ops.delta_rule(qkv, a, b, delta, torch.zeros(1, 4, 8, 8), make_rows([(0, t) for t in range(12)], [0]), whole)
    state, out = torch.zeros(5, 4, 8, 8), torch.empty(12, 4, 8)
    for part in chunks_of(12, [1, 5, 1, 5]):
        mate = random(2, delta.channels, seed=9)
        piece, count = slice(part.start, part.stop), len(part)
        rows = make_rows([(0, part.start + n) for n in range(2)] + [(1, t) for t in part], [4, 2])
        inputs = torch.cat([mate, qkv[piece]]), torch.cat([a[:2], a[piece]]), torch.cat([b[:2], b[piece]])
        both = torch.empty(2 + count, 4, 8)
        ops.delta_rule(*inputs, delta, state, rows, both)
        out[piece] = both[2:]
    assert torch.equal(out, whole)


@pytest.mark.parametrize("states", [[2], [-1]])
def test_a_slot_that_is_not_there_is_refused(states):
    with pytest.raises(IndexError, match="slot"):
        past, rows = torch.zeros(2, 3, 4), make_rows([(0, 0)], states)
        ReferenceOps().short_conv(random(1, 4), random(4, 4), past, rows, torch.empty(1, 4))


def test_gates_and_norm_are_their_formulas():
    ops, x, gate, weight = ReferenceOps(), random(3, 2, 8, seed=1), random(3, 2, 8, seed=2), random(8, seed=3)
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight
    out = torch.empty_like(x)
    for name, act in (("silu", torch.nn.functional.silu), ("sigmoid", torch.sigmoid)):
        ops.gated_norm(x, weight, gate, 1e-5, name, out)
        assert torch.allclose(out, normed * act(gate), atol=1e-6)
    ops.sigmoid_mul(x, gate, out)
    assert torch.allclose(out, x * torch.sigmoid(gate), atol=1e-6)
    total, flat, scale = random(3, 8, seed=4), random(3, 8, seed=5), random(3, 1, seed=6)
    expected = total + torch.sigmoid(scale) * flat
    ops.add_scaled(flat, scale, total)
    assert torch.allclose(total, expected, atol=1e-6)


def test_an_unknown_activation_and_unfitting_shapes_are_refused():
    ops, x = ReferenceOps(), random(1, 1, 4)
    with pytest.raises(ValueError, match="gelu"):
        ops.gated_norm(x, random(4), x, 1e-6, "gelu", x)
    delta, rows = rule((2, 4), (8, 8), False), make_rows([(0, 0)], [0])
    with pytest.raises(ValueError, match="unfitting"):
        ops.delta_rule(random(1, 9), random(1, 4), random(1, 4), delta, torch.zeros(1, 4, 8, 8), rows, x)
    with pytest.raises(ValueError, match="value heads"):
        ops.delta_rule(random(1, 9), random(1, 4), random(1, 4), rule((3, 4), (8, 8), False), x, rows, x)
