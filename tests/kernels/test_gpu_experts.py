"""Mixtures of experts of a GPU in Triton's interpreter, small: routing, few rows bit for bit, many rows by tolerance.

The shared tests (test_ops_experts) would take an hour there: those that are small are called here by name, and every
storage type has a test of its own in `make test-all`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from strata_kernels.gpu import experts
from strata_kernels.ops import Experts, Ops
from tests.kernels import test_ops_experts as shared
from tests.kernels.test_ops_experts import apply, make_layer, packed, sorted_columns, wanted
from tests.support.op_cases import ALL_TYPES, SUPER_TYPES, make_weight, random
from tests.support.op_makers import triton_maker

pytestmark = pytest.mark.skipif(bool(triton_maker().absent), reason="triton is not installed")

FEW, MANY = 3e-6, 2e-3  # of the size of what is summed: f32 sums; f16 inputs


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> Ops:
    """Programs larger than a device wants them: the interpreter takes its time for each."""
    monkeypatch.setattr(experts, "LINES", 64)
    monkeypatch.setattr(experts, "DOWN_LINES", 128)
    return triton_maker().make(1)


def check(got: torch.Tensor, expected: torch.Tensor, share: float) -> None:
    assert (got.double() - expected).norm() <= share * expected.norm()


@pytest.mark.parametrize(
    ("type_name", "rows"),
    [("F16", 2), ("BF16", 17), ("Q4_1", 2), ("Q4_1", 17), ("I4_32", 17), ("IQ4_XS", 1), ("Q6_K", 17)],
)
def test_the_sum_is_that_of_the_formula(ops, type_name, rows):
    inner, width = (256, 256) if type_name in SUPER_TYPES else (32, 96)
    layer = make_layer(type_name, 3, inner, width, top_k=2)
    x, logits = random(rows, width, seed=1), random(rows, 3, seed=2)
    check(apply(ops, x, logits, packed(ops, layer)), wanted(ops, x, logits, layer), FEW if rows <= 2 else MANY)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("type_name", ALL_TYPES)
def test_every_type_is_multiplied(ops, type_name, rows):
    inner, width = (256, 256) if type_name in SUPER_TYPES else (32, 64)
    layer = make_layer(type_name, 2, inner, width, top_k=1)
    x, logits = random(rows, width, seed=1), random(rows, 2, seed=2)
    share = FEW if rows == 1 or type_name == "F32" else MANY
    check(apply(ops, x, logits, packed(ops, layer)), wanted(ops, x, logits, layer), share)


@pytest.mark.parametrize(
    "name",
    [
        "test_equal_logits_choose_the_lowest_ids",
        "test_large_logits_do_not_overflow",
        "test_a_step_follows_the_router_from_run_to_run",
        "test_orders_that_contradict_each_other_are_refused",
        "test_matrices_that_do_not_fit_are_refused",
    ],
)
def test_a_shared_test_holds(ops, name):
    getattr(shared, name)(ops)


def test_shared_tests_with_numbers_hold(ops):
    shared.test_add_keeps_what_the_output_held(ops, 1)
    for top_k in (0, 4):
        shared.test_an_impossible_choice_is_refused(ops, top_k)


@pytest.mark.parametrize("rows", [2, 18])
def test_gate_up_and_down_may_differ_in_type_and_in_order(ops, rows):
    def part(name: str, rows: int, cols: int, seed: int):
        return tuple(make_weight(name, rows, cols, seed=seed + e) for e in range(4))

    layer = Experts(part("Q8_0", 32, 64, 1), part("F16", 32, 64, 11), part("Q5_1", 64, 32, 21), 2, renormalise=False)
    for one in (layer, sorted_columns(layer, but=1)):
        x, logits = random(rows, 64, seed=1), random(rows, 4, seed=2)
        check(apply(ops, x, logits, packed(ops, one)), wanted(ops, x, logits, one), FEW if rows == 2 else MANY)


def test_few_rows_do_not_depend_on_each_other(ops):
    layer = packed(ops, make_layer("Q4_0", 5, 32, 32, top_k=2))
    x, logits = random(3, 32, seed=5), random(3, 5, seed=6)
    whole = apply(ops, x, logits, layer)
    for piece in (slice(1, 2),):
        assert torch.equal(apply(ops, x[piece].clone(), logits[piece].clone(), layer), whole[piece])


def test_all_rows_to_one_expert_and_none_to_others(ops):
    layer = make_layer("F16", 9, 16, 32, top_k=2)
    x, logits = random(40, 32, seed=9), random(40, 9, seed=10)
    logits[:, 4] += 50
    logits[:, 6] += 40
    check(apply(ops, x, logits, packed(ops, layer)), wanted(ops, x, logits, layer), MANY)


def test_one_row_takes_eight_of_128_with_equals_among_them(ops):
    layer = make_layer("F32", 128, 8, 16, top_k=8)
    x, logits = random(1, 16, seed=3), random(1, 128, seed=4).round()
    logits[0, 77] = -0.0
    check(apply(ops, x, logits, packed(ops, layer)), wanted(ops, x, logits, layer), FEW)


def test_rows_that_are_no_numbers_leave_the_others_alone(ops):
    layer = packed(ops, make_layer("F16", 5, 32, 64, top_k=2))
    for rows in (4, 18):
        x, logits, before = random(rows, 64, seed=16), random(rows, 5, seed=17), random(rows, 64, seed=18)
        clean = apply(ops, x, logits, layer, before)
        x[1, 3], logits[1], logits[2, 0] = float("nan"), float("nan"), float("inf")
        got = apply(ops, x, logits, layer, before)
        assert rows > 4 or torch.equal(got[[0, 3]], clean[[0, 3]])
        assert torch.allclose(got[3:], clean[3:], atol=1e-4)  # numpy's products depend on the place in a tile


def test_an_order_that_is_none_is_refused(ops):
    layer = sorted_columns(make_layer("F32", 3, 16, 32, top_k=1))
    twice = replace(layer.down[0], order=layer.down[0].order * 0)
    with pytest.raises(ValueError, match="each of them once"):
        apply(ops, random(1, 32), random(1, 3), replace(layer, down=(twice, *layer.down[1:])))
