"""Ops of recurrent layers, every maker against f64 formulas; any chunks and batch mates give the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from strata_kernels.ops import DeltaRule, Ops, Rows
from tests.support.op_cases import assert_close, random, run

SIZES = pytest.mark.parametrize("sizes", [[11], [1, 2, 1, 7], [3, 8], [1] * 11], ids=str)
# heads, widths: whole registers and blocks, parts of them, more columns than a block has
RULES = pytest.mark.parametrize(
    ("heads", "widths"), [((1, 1), (4, 4)), ((2, 6), (8, 5)), ((3, 3), (5, 37)), ((1, 2), (64, 80)), ((2, 4), (33, 64))]
)


def make_rows(places: list[tuple[int, int]], states: list[int]) -> Rows:
    """Rows for (sequence, position) pairs; `states`: slot of each sequence."""
    sequences, positions = (torch.tensor([p[i] for p in places], dtype=torch.int32) for i in (0, 1))
    pages = torch.zeros(len(states), 1, dtype=torch.int32)
    return Rows(positions, sequences, sequences * 0, pages, torch.tensor(states, dtype=torch.int32))


def pieces_of(sizes: list[int]) -> list[slice]:
    """Consecutive slices of these sizes."""
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def spoilt(*shape: int) -> Tensor:
    return torch.full(shape, float("nan"))


# -- short convolution ------------------------------------------------------------------------------------------------


def convolve(
    ops: Ops, x: Tensor, weight: Tensor, past: Tensor, rows: Rows, silu: bool = True, dilation: int = 1
) -> Tensor:
    x, out = x.clone(), torch.empty_like(x)
    run(ops, lambda: ops.short_conv(x, weight, past, rows, out, silu, dilation))
    return out


def conv_oracle(x: Tensor, weight: Tensor, dilation: int, silu: bool) -> Tensor:
    """One sequence in f64 by torch's own convolution."""
    kernel = weight.shape[1]
    padded = torch.nn.functional.pad(x.double().T[None], ((kernel - 1) * dilation, 0))
    out = torch.nn.functional.conv1d(padded, weight.double()[:, None], groups=x.shape[1], dilation=dilation)[0].T
    return torch.nn.functional.silu(out) if silu else out


@SIZES
@pytest.mark.parametrize(
    ("kernel", "dilation", "silu"), [(4, 1, True), (4, 3, False), (2, 1, True), (3, 2, True), (1, 1, False)]
)
@pytest.mark.parametrize("channels", [5, 600])
def test_a_convolution_sees_the_same_past_in_any_chunks(ops, channels, kernel, dilation, silu, sizes):
    x, weight, past = (
        random(11, channels, seed=1),
        random(channels, kernel, seed=2),
        spoilt(3, (kernel - 1) * dilation, channels),
    )
    parts = [
        convolve(ops, x[piece], weight, past, make_rows([(0, t) for t in range(11)[piece]], [1]), silu, dilation)
        for piece in pieces_of(sizes)
    ]
    whole = convolve(
        ops, x, weight, spoilt(1, *past.shape[1:]), make_rows([(0, t) for t in range(11)], [0]), silu, dilation
    )
    assert torch.equal(torch.cat(parts), whole)
    assert_close(whole, conv_oracle(x, weight, dilation, silu), float(kernel), 2e-6)
    assert past[0].isnan().all()
    assert past[2].isnan().all()


def test_a_long_chunk_leaves_its_end_behind(ops):
    x, weight, past = random(40, 24, seed=1), random(24, 4, seed=2), spoilt(1, 3, 24)
    convolve(ops, x[:39], weight, past, make_rows([(0, t) for t in range(39)], [0]))
    got = convolve(ops, x[39:], weight, past, make_rows([(0, 39)], [0]))
    assert_close(got, conv_oracle(x, weight, 1, True)[39:], 4.0, 2e-6)


# -- gated delta rule -------------------------------------------------------------------------------------------------


def make_rule(heads: tuple[int, int], widths: tuple[int, int], tiled: bool = False) -> DeltaRule:
    decay, bias = -random(heads[1], seed=5).abs() - 0.01, random(heads[1], seed=6)
    return DeltaRule(decay, bias, *heads, *widths, tiled)


def inputs_of(rule: DeltaRule, rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """qkv, a, b."""
    heads = rule.value_heads
    return (
        random(rows, rule.channels, seed=seed + 1),
        random(rows, heads, seed=seed + 2),
        random(rows, heads, seed=seed + 3),
    )


def advance(ops: Ops, inputs: tuple[Tensor, Tensor, Tensor], rule: DeltaRule, state: Tensor, rows: Rows) -> Tensor:
    qkv, a, b = (part.clone() for part in inputs)
    out = spoilt(qkv.shape[0], rule.value_heads, rule.value_width)
    run(ops, lambda: ops.delta_rule(qkv, a, b, rule, state, rows, out))
    return out


def state_of(rule: DeltaRule, slots: int) -> Tensor:
    return spoilt(slots, rule.value_heads, rule.key_width, rule.value_width)


def delta_oracle(inputs: tuple[Tensor, Tensor, Tensor], rule: DeltaRule) -> Tensor:
    """One sequence in f64, head by head, straight from the formula."""
    qkv, a, b = inputs
    keys, width, wide = rule.key_heads * rule.key_width, rule.key_width, rule.value_width
    out = torch.zeros(qkv.shape[0], rule.value_heads, wide, dtype=torch.float64)
    for head in range(rule.value_heads):
        per = rule.value_heads // rule.key_heads
        at = (head % rule.key_heads if rule.tiled else head // per) * width
        matrix = torch.zeros(width, wide, dtype=torch.float64)
        for t, row in enumerate(qkv.double()):
            q, k = row[at : at + width], row[keys + at : keys + at + width]
            v = row[2 * keys + head * wide : 2 * keys + (head + 1) * wide]
            q, k = (u / (u.square().sum() + 1e-6).sqrt() for u in (q, k))
            g = float(rule.decay[head]) * torch.nn.functional.softplus(a[t, head].double() + rule.dt_bias[head])
            matrix = matrix * g.exp()
            d = torch.sigmoid(b[t, head].double()) * (v - matrix.T @ k)
            matrix = matrix + torch.outer(k, d)
            out[t, head] = matrix.T @ q / width**0.5
    return out


@RULES
@pytest.mark.parametrize("tiled", [False, True])
def test_the_delta_rule_is_its_formula(ops, heads, widths, tiled):
    rule = make_rule(heads, widths, tiled)
    inputs = inputs_of(rule, 37)
    got = advance(ops, inputs, rule, state_of(rule, 2), make_rows([(0, t) for t in range(37)], [1]))
    wanted = delta_oracle(inputs, rule)
    assert_close(got, wanted, wanted.abs().max(), 2e-6)


@RULES
@pytest.mark.parametrize("sizes", [[1] * 40, [33, 1, 6], [7, 33]], ids=str)
def test_chunks_and_batch_mates_do_not_change_a_bit(ops, heads, widths, sizes):
    rule = make_rule(heads, widths)
    inputs = inputs_of(rule, 40)
    whole = advance(ops, inputs, rule, state_of(rule, 1), make_rows([(0, t) for t in range(40)], [0]))
    state, mate = state_of(rule, 5), inputs_of(rule, 2, seed=9)
    for piece in pieces_of(sizes):
        rows = make_rows([(0, piece.start + n) for n in range(2)] + [(1, t) for t in range(40)[piece]], [4, 2])
        both = tuple(torch.cat([mine, own[piece]]) for mine, own in zip(mate, inputs, strict=True))
        state[4] = 0
        assert torch.equal(advance(ops, both, rule, state, rows)[2:], whole[piece])
    assert state[[0, 1, 3]].isnan().all()


def test_the_thread_count_does_not_matter(threaded_maker):
    rule = make_rule((1, 2), (64, 80))
    inputs, rows = inputs_of(rule, 40), make_rows([(0, t) for t in range(35)] + [(1, t) for t in range(5)], [1, 0])
    first, *rest = [advance(threaded_maker.make(n), inputs, rule, state_of(rule, 2), rows) for n in (1, 2, 5)]
    assert all(torch.equal(first, other) for other in rest)


def test_extreme_gates_forget_all_or_nothing(ops):
    rule = make_rule((1, 2), (16, 32))
    qkv, a, b = inputs_of(rule, 6)
    a[:, 0], a[:, 1], b[2:4], b[4:] = 200.0, -200.0, 100.0, -100.0
    got = advance(ops, (qkv, a, b), rule, state_of(rule, 1), make_rows([(0, t) for t in range(6)], [0]))
    wanted = delta_oracle((qkv, a, b), rule)
    assert_close(got, wanted, wanted.abs().max(), 2e-6)


def test_a_recorded_step_follows_its_rows(ops):
    """Positions, sequences and slots are read at each run."""
    rule = make_rule((1, 1), (8, 8))
    (qkv, a, b), state, out = inputs_of(rule, 4), state_of(rule, 3), torch.empty(4, 1, 8)
    rows = make_rows([(0, 0), (0, 1), (0, 2), (0, 3)], [2, 1])
    ops.begin()
    ops.delta_rule(qkv, a, b, rule, state, rows, out)
    step = ops.end()
    step.run()
    assert_close(out, delta_oracle((qkv, a, b), rule), 1.0, 2e-6)
    for target, values in ((rows.sequences, (0, 0, 1, 1)), (rows.positions, (0, 1, 0, 1)), (rows.states, (0, 2))):
        target.copy_(torch.tensor(values, dtype=torch.int32))
    step.run()
    for piece in (slice(0, 2), slice(2, 4)):
        assert_close(out[piece], delta_oracle((qkv[piece], a[piece], b[piece]), rule), 1.0, 2e-6)
    assert state[1].isnan().all()


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("states", [[2], [-1], [2**31 - 1]])
def test_a_slot_that_is_not_there_is_refused(ops, states):
    rule, rows = make_rule((1, 1), (8, 8)), make_rows([(0, 0)], states)
    with pytest.raises(IndexError, match="slot"):
        convolve(ops, random(1, 4), random(4, 4), torch.zeros(2, 3, 4), rows)
    with pytest.raises(IndexError, match="slot"):
        advance(ops, inputs_of(rule, 1), rule, torch.zeros(2, 1, 8, 8), rows)


@pytest.mark.parametrize("sequence", [1, -1])
def test_a_sequence_that_is_not_there_is_refused(ops, sequence):
    with pytest.raises(IndexError, match="sequence"):
        convolve(ops, random(1, 4), random(4, 4), torch.zeros(2, 3, 4), make_rows([(sequence, 0)], [0]))


@pytest.mark.parametrize(
    ("places", "states"),
    [([(0, 0), (0, 2)], [0]), ([(0, 1), (0, 0)], [0]), ([(0, 0), (1, 0), (0, 1)], [0, 1]), ([(0, 0), (1, 0)], [1, 1])],
)
def test_native_rows_that_are_not_in_order_are_refused(threaded_maker, places, states):
    with pytest.raises(IndexError, match="consecutive"):
        x = random(len(places), 4)
        convolve(threaded_maker.make(1), x, random(4, 4), torch.zeros(2, 3, 4), make_rows(places, states))


def test_unfitting_shapes_are_refused(ops):
    rule, rows = make_rule((2, 4), (8, 8)), make_rows([(0, 0)], [0])
    state, out = torch.zeros(1, 4, 8, 8), torch.empty(1, 4, 8)
    gates = random(1, 4), random(1, 4)
    with pytest.raises(ValueError, match="delta_rule"):
        ops.delta_rule(random(1, 9), *gates, rule, state, rows, out)
    with pytest.raises(ValueError, match="delta_rule"):
        ops.delta_rule(random(1, rule.channels), *gates, rule, torch.zeros(1, 4, 8, 9), rows, out)
    with pytest.raises(ValueError, match="value heads"):
        ops.delta_rule(random(1, 9), *gates, make_rule((3, 4), (8, 8)), state, rows, out)
    with pytest.raises(ValueError, match="short_conv"):
        ops.short_conv(random(1, 4), random(4, 4), torch.zeros(1, 2, 4), rows, torch.empty(1, 4))
    with pytest.raises(ValueError, match="state"):
        without = Rows(rows.positions, rows.sequences, rows.slots, rows.pages)
        convolve(ops, random(1, 4), random(4, 4), torch.zeros(1, 3, 4), without)


# -- norm and gates ---------------------------------------------------------------------------------------------------

ACTIVATIONS = {"silu": torch.nn.functional.silu, "sigmoid": torch.sigmoid}


@pytest.mark.parametrize("name", ["silu", "sigmoid"])
@pytest.mark.parametrize("width", [8, 33, 128])
def test_a_gated_norm_is_its_formula(ops, name, width):
    x, gate, weight = random(5, 3, width, seed=1), random(5, 3, width, seed=2, scale=6), random(width, seed=3)
    wide = x.double()
    wanted = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * weight * ACTIVATIONS[name](gate.double())
    out = torch.empty_like(x)
    run(ops, lambda: ops.gated_norm(x, weight, gate, 1e-5, name, out))
    assert_close(out, wanted, wanted.abs(), 3e-6)
    run(ops, lambda: ops.gated_norm(x, weight, gate, 1e-5, name, x))
    assert torch.equal(x, out)


def test_an_unknown_activation_is_refused(ops):
    x = random(1, 1, 4)
    with pytest.raises(ValueError, match="gelu"):
        ops.gated_norm(x, random(4), x, 1e-6, "gelu", x)


@pytest.mark.parametrize("count", [1, 33, 700])
def test_a_sigmoid_gate_is_its_formula(ops, count):
    x, gate = random(3, count, seed=1), random(3, count, seed=2, scale=30)
    out = torch.empty_like(x)
    run(ops, lambda: ops.sigmoid_mul(x, gate, out))
    wanted = x.double() * torch.sigmoid(gate.double())
    assert_close(out, wanted, x.abs().double() * 1e-30 + wanted.abs(), 3e-6)
    run(ops, lambda: ops.sigmoid_mul(x, gate, x))
    assert torch.equal(x, out)


@pytest.mark.parametrize("width", [1, 40, 2048])
def test_rows_are_added_by_their_gates(ops, width):
    x, gate, before = random(5, width, seed=1), random(5, 1, seed=2), random(5, width, seed=3)
    out = before.clone()
    run(ops, lambda: ops.add_scaled(x, gate, out))
    wanted = before.double() + torch.sigmoid(gate.double()) * x.double()
    assert_close(out, wanted, before.abs().double() + x.abs().double(), 1e-6)


def test_rows_of_gates_do_not_depend_on_each_other(ops):
    x, gate, weight = random(33, 70, seed=1), random(33, 70, seed=2), random(70, seed=3)
    whole, alone = torch.empty_like(x), torch.empty(1, 70)
    run(ops, lambda: ops.gated_norm(x, weight, gate, 1e-6, "silu", whole))
    for row in (0, 7, 32):
        one = x[row : row + 1].clone(), gate[row : row + 1].clone()
        run(ops, lambda one=one: ops.gated_norm(one[0], weight, one[1], 1e-6, "silu", alone))
        assert torch.equal(alone[0], whole[row])
