"""experts: every maker against an f64 formula on what the contract says it multiplies, and row by row bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from strata_kernels.ops import Experts, Ops, Weight
from tests.support.op_cases import ALL_TYPES, SUPER_TYPES, make_weight, random, run, seen_by, values_of

TYPE = pytest.mark.parametrize("type_name", ALL_TYPES)


def make_layer(type_name: str, count: int, inner: int, width: int, top_k: int, renormalise: bool = True) -> Experts:
    """Random experts, matrices in file layout."""

    def part(rows: int, cols: int, seed: int):
        return tuple(make_weight(type_name, rows, cols, seed=seed + expert) for expert in range(count))

    return Experts(part(inner, width, 100), part(inner, width, 200), part(width, inner, 300), top_k, renormalise)


def packed(ops: Ops, layer: Experts) -> Experts:
    parts = (tuple(ops.pack(weight) for weight in part) for part in (layer.gate, layer.up, layer.down))
    return Experts(*parts, layer.top_k, layer.renormalise)


def apply(ops: Ops, x: Tensor, logits: Tensor, layer: Experts, before: Tensor | None = None) -> Tensor:
    out = torch.full(x.shape, float("nan")) if before is None else before.clone()
    run(ops, lambda: ops.experts(x, logits, layer, out, add=before is not None))
    return out


def wanted(ops: Ops, x: Tensor, logits: Tensor, layer: Experts) -> Tensor:
    """The formula in f64, with activations rounded as `ops` rounds them; the hidden ones are made in f32 first."""
    probabilities = torch.softmax(logits.double(), -1)
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row in range(x.shape[0]):
        chosen = sorted(range(len(layer.gate)), key=lambda e: (-logits[row, e].item(), e))[: layer.top_k]
        weights = probabilities[row, chosen]
        weights = weights / weights.sum() if layer.renormalise else weights
        for expert, weight in zip(chosen, weights, strict=True):
            gate, up, down = layer.gate[expert], layer.up[expert], layer.down[expert]
            one = in_order(x[row : row + 1], gate)
            g, u = seen_by(ops, gate, one) @ values_of(gate).T, seen_by(ops, up, one) @ values_of(up).T
            hidden = in_order((torch.nn.functional.silu(g) * u).float(), down)
            out[row] += weight * (seen_by(ops, down, hidden) @ values_of(down).T)[0]
    return out


def in_order(x: Tensor, weight: Weight) -> Tensor:
    """The columns of x as those of the matrix lie."""
    return x if weight.order is None else x[:, torch.as_tensor(weight.order).long()]


def sorted_columns(layer: Experts, but: int | None = None) -> Experts:
    """The layer as if the columns of every expert (not of `but`) had been sorted in a way of its own."""

    def part(weights, seed):
        return tuple(
            w if e == but else replace(w, order=np.random.default_rng(seed + e).permutation(w.cols).astype(np.int32))
            for e, w in enumerate(weights)
        )

    return replace(layer, gate=part(layer.gate, 1), up=part(layer.up, 1), down=part(layer.down, 90))


def check(ops: Ops, got: Tensor, expected: Tensor) -> None:
    """The hidden values are rounded to a few bits once more: one that lies on an edge may fall to either side."""
    bits = getattr(ops, "activation_bits", 32)
    assert (got.double() - expected).norm() <= {8: 5e-3, 16: 3e-5, 32: 3e-6}[bits] * expected.norm()


def sizes(type_name: str) -> tuple[int, int]:
    """(inner, width): groups that are not full where the type allows it."""
    return (256, 512) if type_name in SUPER_TYPES else (96, 160)


@TYPE
@pytest.mark.parametrize("rows", [1, 2, 13])
def test_the_sum_is_that_of_the_formula(ops, type_name, rows):
    inner, width = sizes(type_name)
    layer = make_layer(type_name, 5, inner, width, top_k=2)
    x, logits = random(rows, width, seed=1), random(rows, 5, seed=2)
    check(ops, apply(ops, x, logits, packed(ops, layer)), wanted(ops, x, logits, layer))


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize(("count", "top_k"), [(1, 1), (3, 3), (7, 1), (37, 5)])
def test_any_number_of_experts_can_be_chosen(ops, count, top_k, renormalise, rows):
    layer = make_layer("F32", count, 24, 40, top_k, renormalise)
    x, logits = random(rows, 40, seed=3), random(rows, count, seed=4)
    got = apply(ops, x, logits, packed(ops, layer))
    assert torch.allclose(got.double(), wanted(ops, x, logits, layer), rtol=1e-5, atol=1e-6)


@TYPE
def test_a_row_does_not_depend_on_its_batch_mates(ops, type_name):
    inner, width = sizes(type_name)
    layer = packed(ops, make_layer(type_name, 6, inner, width, top_k=3))
    x, logits = random(29, width, seed=5), random(29, 6, seed=6)
    whole = apply(ops, x, logits, layer)
    for start, end in ((0, 1), (28, 29), (0, 8), (5, 14), (3, 29)):
        assert torch.equal(apply(ops, x[start:end].clone(), logits[start:end].clone(), layer), whole[start:end])


@pytest.mark.parametrize("type_name", ["F32", "Q4_1", "Q6_K"])
def test_the_thread_count_does_not_matter(threaded_maker, type_name):
    inner, width = sizes(type_name)
    layer = make_layer(type_name, 6, inner, width, top_k=3)
    x, logits = random(11, width, seed=7), random(11, 6, seed=8)
    results = []
    for threads in (1, 2, 3):
        ops = threaded_maker.make(threads)
        results.append(apply(ops, x, logits, packed(ops, layer)))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("type_name", ["F16", "Q8_0", "Q4_K"])
def test_one_expert_may_take_all_rows_and_others_none(ops, type_name):
    inner, width = sizes(type_name)
    layer = make_layer(type_name, 9, inner, width, top_k=2)
    x, logits = random(40, width, seed=9), random(40, 9, seed=10)
    logits[:, 4] += 50
    logits[:, 6] += 40
    check(ops, apply(ops, x, logits, packed(ops, layer)), wanted(ops, x, logits, layer))


def test_equal_logits_choose_the_lowest_ids(ops):
    layer = make_layer("F32", 8, 16, 32, top_k=3)
    x, logits = random(2, 32, seed=11), torch.zeros(2, 8)
    logits[1, 5] = 1
    got = apply(ops, x, logits, packed(ops, layer))
    assert torch.allclose(got.double(), wanted(ops, x, logits, layer), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 5])
def test_add_keeps_what_the_output_held(ops, rows):
    layer = packed(ops, make_layer("Q8_0", 4, 64, 96, top_k=2))
    x, logits, before = random(rows, 96, seed=12), random(rows, 4, seed=13), random(rows, 96, seed=14)
    assert torch.equal(apply(ops, x, logits, layer, before), before + apply(ops, x, logits, layer))


def test_large_logits_do_not_overflow(ops):
    layer = make_layer("F32", 4, 16, 32, top_k=2)
    x, logits = random(1, 32, seed=15), torch.tensor([[3e38, -3e38, 2.9e38, 0.0]])
    got = apply(ops, x, logits, packed(ops, layer))
    assert torch.allclose(got.double(), wanted(ops, x, logits, layer), rtol=1e-5, atol=1e-6)


def test_a_row_that_is_not_finite_leaves_the_others_alone(ops):
    layer = packed(ops, make_layer("Q4_0", 5, 64, 96, top_k=2))
    x, logits = random(4, 96, seed=16), random(4, 5, seed=17)
    clean = apply(ops, x, logits, layer)
    x[1, 3], logits[1], logits[2, 0] = float("nan"), float("nan"), float("inf")
    got = apply(ops, x, logits, layer)
    assert torch.equal(got[0], clean[0])
    assert torch.equal(got[3], clean[3])


def test_a_step_follows_the_router_from_run_to_run(ops):
    layer = make_layer("F32", 6, 16, 32, top_k=2)
    held = packed(ops, layer)
    x, logits, out = random(3, 32, seed=18), random(3, 6, seed=19), torch.empty(3, 32)
    ops.begin()
    ops.experts(x, logits, held, out)
    step = ops.end()
    for seed in (20, 21):
        logits.copy_(random(3, 6, seed=seed))
        step.run()
        assert torch.allclose(out.double(), wanted(ops, x, logits, layer), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("type_name", ["F32", "I4_32", "I8_128", "F8_128"])
@pytest.mark.parametrize("rows", [1, 13])
def test_every_expert_may_have_its_columns_in_an_order_of_its_own(ops, type_name, rows):
    inner, width = sizes(type_name)
    layer = sorted_columns(make_layer(type_name, 5, inner, width, top_k=2), but=3)
    x, logits = random(rows, width, seed=1), random(rows, 5, seed=2)
    whole = apply(ops, x, logits, packed(ops, layer))
    check(ops, whole, wanted(ops, x, logits, layer))
    last = apply(ops, x[-1:].clone(), logits[-1:].clone(), packed(ops, layer))
    assert torch.equal(last, whole[-1:])


def test_orders_that_contradict_each_other_are_refused(ops):
    layer = sorted_columns(make_layer("F32", 3, 16, 32, top_k=1))
    x, logits, out = random(1, 32), random(1, 3), torch.empty(1, 32)
    with pytest.raises(ValueError, match="different orders"):
        ops.experts(x, logits, replace(layer, up=layer.gate[1:] + layer.gate[:1]), out)
    if ops.name == "native":
        twice = replace(layer.down[0], order=np.zeros(16, np.int32))
        with pytest.raises(ValueError, match="each of them once"):
            ops.experts(x, logits, packed(ops, replace(layer, down=(twice, *layer.down[1:]))), out)


@pytest.mark.parametrize("top_k", [0, 4])
def test_an_impossible_choice_is_refused(ops, top_k):
    layer = make_layer("F32", 3, 16, 32, top_k=top_k)
    with pytest.raises(ValueError, match="cannot be chosen"):
        ops.experts(random(1, 32), random(1, 3), layer, torch.empty(1, 32))


def test_matrices_that_do_not_fit_are_refused(ops):
    layer = make_layer("F32", 3, 16, 32, top_k=1)
    with pytest.raises(ValueError, match="down is not 3 matrices of 32 x 16"):
        ops.experts(random(1, 32), random(1, 3), Experts(layer.gate, layer.up, layer.gate, 1, True), torch.empty(1, 32))
