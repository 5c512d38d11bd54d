"""Recurrent ops of a GPU in Triton's interpreter, small: few and many rows against the reference, and bad numbers.

The shared tests (test_ops_delta, test_ops_drafts) run them too, but take minutes: `make test-all`.
"""

from __future__ import annotations

import pytest
import torch

from strata_kernels.ops import Ops, Rows
from strata_kernels.reference.ops import ReferenceOps
from tests.kernels.test_ops_delta import convolve, inputs_of, make_rows, make_rule, spoilt, state_of
from tests.support.op_cases import assert_close, random, run
from tests.support.op_makers import triton_maker

pytestmark = pytest.mark.skipif(bool(triton_maker().absent), reason="triton is not installed")

FEW = [(0, 0), (0, 1), (1, 5), (2, 0), (2, 1), (2, 2)]
MANY = [(0, n) for n in range(3)] + [(1, 5)] + [(2, n) for n in range(13)]
SLOTS = [2, 0, 3]


@pytest.fixture
def ops() -> Ops:
    return triton_maker().make(1)


@pytest.mark.parametrize("places", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize(("kernel", "dilation", "spare"), [(4, 1, 0), (3, 2, 3), (1, 1, 0)])
def test_a_convolution_is_the_reference(ops, places, kernel, dilation, spare):
    x, weight, rows = random(len(places), 20, seed=1), random(20, kernel, seed=2), make_rows(places, SLOTS)
    past = random(4, (kernel - 1) * dilation + spare, 20, seed=3)
    other = past.clone()
    got = convolve(ops, x, weight, past, rows, dilation > 1, dilation)
    assert_close(got, convolve(ReferenceOps(), x, weight, other, rows, dilation > 1, dilation), float(kernel), 2e-6)
    assert torch.equal(past, other)


def with_drafts(rows: Rows, keep: list[int], fold: list[int]) -> Rows:
    numbers = (torch.tensor(part, dtype=torch.int32) for part in (keep, fold))
    return Rows(rows.positions, rows.sequences, rows.slots, rows.pages, rows.states, None, None, None, *numbers)


def turned(state: torch.Tensor) -> torch.Tensor:
    """A slot as the other Ops has it: [Dk, Dv] of each head as [Dv, Dk] in the same shape, or back."""
    slots, heads, keys, values = state.shape
    return state.reshape(slots, heads, values, keys).transpose(2, 3).contiguous()


@pytest.mark.parametrize("places", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize("drafts", [False, True])
def test_the_delta_rule_is_the_reference(ops, places, drafts):
    rule, rows, reference = make_rule((1, 2), (8, 20), tiled=drafts), make_rows(places, SLOTS), ReferenceOps()
    inputs, state = inputs_of(rule, len(places)), random(4, 2, 8, 20, seed=4)
    other, pending = turned(state), random(4, 2, rule.pending_width, seed=5) if drafts else None
    kept = None if pending is None else pending.clone()
    if drafts:
        counts = [sum(sequence == n for sequence, _ in places) for n in range(3)]
        rows = with_drafts(rows, [counts[0] - 1, 1, counts[2] - 2], [1, 2, 0])
    got, wanted = (spoilt(len(places), 2, 20) for _ in range(2))
    run(ops, lambda: ops.delta_rule(*inputs, rule, state, rows, got, pending))
    run(reference, lambda: reference.delta_rule(*inputs, rule, other, rows, wanted, kept))
    assert_close(got, wanted, wanted.abs().max(), 5e-6)
    assert_close(turned(state), other, other.abs().max(), 5e-6)
    assert torch.equal(state[1], random(4, 2, 8, 20, seed=4)[1])
    assert pending is kept or torch.equal(pending, kept)


@pytest.mark.parametrize(("sequence", "slot"), [(0, 2), (0, -1), (0, 2**31 - 1), (1, 0), (-1, 0)])
def test_rows_of_a_slot_that_is_not_there_give_nan(ops, sequence, slot):
    rule, rows = make_rule((1, 1), (8, 8)), make_rows([(sequence, 3)], [slot])
    past, state, out = torch.zeros(2, 3, 4), torch.zeros(2, 1, 8, 8), torch.zeros(1, 1, 8)
    assert convolve(ops, random(1, 4), random(4, 4), past, rows).isnan().all()
    run(ops, lambda: ops.delta_rule(*inputs_of(rule, 1), rule, state, rows, out))
    assert out.isnan().all()
    assert not past.any()
    assert not state.any()


@pytest.mark.parametrize(("keep", "fold"), [(5, 0), (-1, 0), (1, 3), (1, -1)], ids=["rows", "below 0", "more", "less"])
def test_impossible_numbers_of_rows_give_nan(ops, keep, fold):
    rule = make_rule((1, 1), (8, 8))
    rows = with_drafts(make_rows([(0, t) for t in range(2, 6)], [1]), [keep], [fold])
    state, pending, out = torch.zeros(2, 1, 8, 8), torch.zeros(2, 3, rule.pending_width), torch.zeros(4, 1, 8)
    run(ops, lambda: ops.delta_rule(*inputs_of(rule, 4), rule, state, rows, out, pending))
    assert out.isnan().all()
    assert not state.any()
    assert not pending.any()


def test_a_row_of_a_state_does_not_depend_on_its_mates(ops):
    rule = make_rule((1, 2), (8, 20))
    inputs, start = inputs_of(rule, len(FEW)), state_of(rule, 4).nan_to_num(0.5)
    whole, state = spoilt(len(FEW), 2, 20), start.clone()
    run(ops, lambda: ops.delta_rule(*inputs, rule, state, make_rows(FEW, SLOTS), whole))
    alone, own = spoilt(1, 2, 20), start.clone()
    run(ops, lambda: ops.delta_rule(*(p[2:3].clone() for p in inputs), rule, own, make_rows([(0, 5)], [0]), alone))
    assert torch.equal(alone[0], whole[2])
    assert torch.equal(own[0], state[0])


def test_gates_are_the_reference(ops):
    x, gate, weight, reference = (
        random(2, 3, 40, seed=1),
        random(2, 3, 40, seed=2, scale=40),
        random(40, seed=3),
        ReferenceOps(),
    )
    for call in (
        lambda ops, out: ops.gated_norm(x, weight, gate, 1e-5, "silu", out),
        lambda ops, out: ops.gated_norm(x, weight, gate, 1e-5, "sigmoid", out),
        lambda ops, out: ops.sigmoid_mul(x, gate, out),
        lambda ops, out: ops.add_scaled(x.view(6, 40), gate.view(-1)[:6].view(6, 1), out.view(6, 40)),
    ):
        got, wanted = torch.ones(2, 3, 40), torch.ones(2, 3, 40)
        run(ops, lambda call=call, got=got: call(ops, got))
        run(reference, lambda call=call, wanted=wanted: call(reference, wanted))
        assert_close(got, wanted, wanted.abs() + 1, 3e-6)


def test_block_conv_is_the_reference(ops):
    x, base, change, reference = random(6, 24, seed=1), random(2, 3, 24, seed=2), random(6, 24, seed=3), ReferenceOps()
    rows, got, wanted = make_rows([(n, 0) for n in (0, 0, 0, 1, 2, 2)], [0, 1, 2]), spoilt(6, 24), spoilt(6, 24)
    run(ops, lambda: ops.block_conv(x, change, base, 1, rows, got))
    run(reference, lambda: reference.block_conv(x, change, base, 1, rows, wanted))
    assert_close(got, wanted, 4.0, 1e-6)
