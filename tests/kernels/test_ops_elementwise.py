"""silu_mul and add."""

from __future__ import annotations

import pytest
import torch

from tests.support.op_cases import assert_close, random, run

WIDTHS = (1, 7, 32, 576, 1537)


def silu_mul(ops, gate, up):
    out = torch.empty_like(gate)
    run(ops, lambda: ops.silu_mul(gate, up, out))
    return out


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [1, 5, 33])
def test_the_gate_is_silu(ops, width, count):
    gate, up = random(count, width, scale=4.0), random(count, width, seed=1)
    wanted = torch.nn.functional.silu(gate.double()) * up.double()
    assert_close(silu_mul(ops, gate, up), wanted, wanted.abs(), 4e-6)


def test_extreme_gates_give_no_nan(ops):
    gate = torch.tensor([[-1e30, -200.0, -90.0, -0.0, 0.0, 90.0, 200.0, 1e30]])
    got = silu_mul(ops, gate, torch.ones(1, 8))
    assert torch.isfinite(got).all()
    assert (got[0, :2].abs() <= 1e-38 * gate[0, :2].abs()).all()  # kernels bound the exponent near 88
    assert torch.equal(got[0, 3:], torch.tensor([0.0, 0.0, 90.0, 200.0, 1e30]))


@pytest.mark.parametrize("place", ["gate", "up"])
def test_the_output_may_be_an_input(ops, place):
    gate, up = random(4, 96), random(4, 96, seed=1)
    wanted = silu_mul(ops, gate, up)
    out = gate if place == "gate" else up
    run(ops, lambda: ops.silu_mul(gate, up, out))
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_gated_row_does_not_depend_on_the_others(ops, width):
    gate, up = random(33, width, scale=4.0), random(33, width, seed=1)
    whole = silu_mul(ops, gate, up)
    for start, count in ((0, 1), (7, 1), (32, 1), (4, 8)):
        part = slice(start, start + count)
        assert torch.equal(silu_mul(ops, gate[part].clone(), up[part].clone()), whole[part])


@pytest.mark.parametrize("width", WIDTHS)
def test_sums_are_exact(ops, width):
    a, b = random(9, width), random(9, width, seed=1)
    out = torch.empty_like(a)
    run(ops, lambda: ops.add(a, b, out))
    assert torch.equal(out, a + b)


@pytest.mark.parametrize("place", ["a", "b"])
def test_a_sum_may_replace_an_input(ops, place):
    a, b = random(4, 96), random(4, 96, seed=1)
    wanted, out = a + b, a if place == "a" else b
    run(ops, lambda: ops.add(a, b, out))
    assert torch.equal(out, wanted)
