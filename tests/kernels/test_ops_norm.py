"""rms_norm over the last dimension, whole rows and heads."""

from __future__ import annotations

import pytest
import torch

from tests.support.op_cases import assert_close, random, run

WIDTHS = (1, 8, 33, 64, 576, 1000)


def oracle(x, weight, eps):
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


def norm(ops, x, weight, eps=1e-5):
    out = torch.empty_like(x)
    run(ops, lambda: ops.rms_norm(x, weight, eps, out))
    return out


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("eps", [1e-5, 1e-6])
def test_rows_are_scaled_to_unit_mean_square(ops, width, eps):
    x, weight = random(9, width, scale=3.0), random(width, seed=1)
    wanted = oracle(x, weight, eps)
    assert_close(norm(ops, x, weight, eps), wanted, wanted.abs(), 2e-6)


@pytest.mark.parametrize("heads", [1, 3, 9])
def test_heads_are_scaled_each_for_itself(ops, heads):
    x, weight = random(5, heads, 64), random(64, seed=1)
    wanted = oracle(x, weight, 1e-6)
    assert_close(norm(ops, x, weight, 1e-6), wanted, wanted.abs(), 2e-6)


def test_the_output_may_be_the_input(ops):
    x, weight = random(5, 96), random(96, seed=1)
    wanted = norm(ops, x.clone(), weight)
    run(ops, lambda: ops.rms_norm(x, weight, 1e-5, x))
    assert torch.equal(x, wanted)


def test_rows_of_zeros_stay_zero(ops):
    assert torch.equal(norm(ops, torch.zeros(2, 64), torch.ones(64)), torch.zeros(2, 64))


def test_large_values_do_not_overflow_early(ops):
    x = random(2, 64, scale=1e15)
    wanted = oracle(x, torch.ones(64), 1e-5)
    assert_close(norm(ops, x, torch.ones(64)), wanted, wanted.abs(), 2e-6)


@pytest.mark.parametrize("shape", [(33, 576), (33, 3, 64), (33, 33)])
def test_a_row_does_not_depend_on_the_others(ops, shape):
    x, weight = random(*shape), random(shape[-1], seed=1)
    whole = norm(ops, x, weight)
    for start, count in ((0, 1), (7, 1), (32, 1), (4, 8)):
        assert torch.equal(norm(ops, x[start : start + count].clone(), weight), whole[start : start + count])


def test_the_thread_count_does_not_matter(threaded_maker):
    x, weight = random(33, 576), random(576, seed=1)
    first, *rest = [norm(threaded_maker.make(threads), x, weight) for threads in (1, 2, 3)]
    assert all(torch.equal(first, other) for other in rest)
