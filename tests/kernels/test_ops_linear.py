"""linear: every maker against f64 formulas on what the contract says it multiplies, and row by row bit for bit."""

from __future__ import annotations

import pytest
import torch

from strata_kernels.ops import Ops, Weight
from tests.support.op_cases import (
    ALL_TYPES,
    BLOCK,
    BYTE_FLOAT_TYPES,
    FLOAT_TYPES,
    SUPER_TYPES,
    alike_rows,
    assert_close,
    linear,
    make_weight,
    product_share,
    random,
    run,
    seen_by,
    values_of,
)

TYPE = pytest.mark.parametrize("type_name", ALL_TYPES)
ROW_COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 33)


def shapes(type_name: str, ops: Ops) -> list[tuple[int, int]]:
    """(N, K): fewer outputs than a group of 16, part groups, several super-blocks; the smallest K the type allows.

    Of interpreted kernels: one shape of a part tile, one of several tiles.
    """
    if ops.name == "triton":
        return [(1, BLOCK[type_name] if BLOCK[type_name] > 1 else 3), (outputs(ops, 100), 1280)]
    if type_name in SUPER_TYPES:
        return [(1, 256), (16, 256), (33, 512), (100, 1536)]
    if type_name in FLOAT_TYPES:
        return [(1, 32), (16, 64), (33, 96), (100, 576), (7, 40), (5, 3)]
    return [(1, 32), (15, 32), (16, 64), (33, 96), (100, 576)]


def outputs(ops: Ops, count: int) -> int:
    """So many outputs; for interpreted kernels, which take 50 ms a program, one tile and part of a second."""
    return min(count, 6) if ops.name == "triton" else count


def check(ops, weight: Weight, x: torch.Tensor, got: torch.Tensor, extra: torch.Tensor | float = 0.0) -> None:
    matrix, seen = values_of(weight), seen_by(ops, weight, x)
    magnitude = seen.abs() @ matrix.abs().T + torch.as_tensor(extra).abs()
    assert_close(got, seen @ matrix.T + extra, magnitude, product_share(ops, weight, x.shape[0]))


@TYPE
def test_products_are_those_of_the_contract(ops, type_name):
    for rows, cols in shapes(type_name, ops):
        weight = make_weight(type_name, rows, cols, seed=rows + cols)
        packed = ops.pack(weight)
        for count in (1, 3, 8, 33):
            x = random(count, cols, seed=count)
            check(ops, weight, x, linear(ops, x, packed))


@TYPE
def test_products_are_near_those_of_unrounded_activations(ops, type_name):
    cols = 512 if type_name in SUPER_TYPES else 576
    weight = make_weight(type_name, outputs(ops, 64), cols)
    x = random(9, cols, seed=2)
    got, wanted = linear(ops, x, ops.pack(weight)).double(), x.double() @ values_of(weight).T
    assert (got - wanted).norm() <= 1e-2 * wanted.norm()


@TYPE
def test_a_row_does_not_depend_on_how_many_rows_there_are(ops, type_name):
    cols = 512 if type_name in SUPER_TYPES else 288
    packed = ops.pack(make_weight(type_name, outputs(ops, 50), cols))
    most = alike_rows(ops)
    x = random(most, cols, seed=3)
    whole = linear(ops, x, packed)
    for count in (count for count in ROW_COUNTS if count <= most):
        for start in (0, most - count):
            assert torch.equal(linear(ops, x[start : start + count].clone(), packed), whole[start : start + count])


@pytest.mark.parametrize("type_name", [*FLOAT_TYPES, *BYTE_FLOAT_TYPES])
def test_few_rows_of_float_weights_share_many_groups(ops, type_name):
    """Tiles of every number of rows, with whole sets of groups, groups left over and a group cut short."""
    packed, x = ops.pack(make_weight(type_name, outputs(ops, 16 * 17 + 3), 128)), random(17, 128, seed=5)
    alone = torch.cat([linear(ops, x[row : row + 1].clone(), packed) for row in range(17)])
    for count in (count for count in (*range(2, 9), 13, 16, 17) if count <= alike_rows(ops)):
        assert torch.equal(linear(ops, x[:count].clone(), packed), alone[:count])


@TYPE
def test_the_thread_count_does_not_matter(threaded_maker, type_name):
    cols = 512 if type_name in SUPER_TYPES else 288
    weight, x = make_weight(type_name, 170, cols), random(5, cols, seed=4)
    results = []
    for threads in (1, 2, 3):
        ops = threaded_maker.make(threads)
        results.append(linear(ops, x, ops.pack(weight)))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("type_name", ["F32", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("count", [1, 6])
def test_a_bias_is_added(ops, type_name, count):
    weight, x, bias = make_weight(type_name, 35, 256), random(count, 256, seed=5), random(35, seed=6)
    check(ops, weight, x, linear(ops, x, ops.pack(weight), bias), bias)


@pytest.mark.parametrize("type_name", ["F16", "Q4_0", "Q5_K"])
@pytest.mark.parametrize("count", [1, 6])
def test_add_keeps_what_the_output_held(ops, type_name, count):
    weight, x, before = make_weight(type_name, 35, 256), random(count, 256, seed=7), random(count, 35, seed=8)
    packed, out = ops.pack(weight), before.clone()
    run(ops, lambda: ops.linear(x, [packed], [out], add=True))
    check(ops, weight, x, out, before)


@pytest.mark.parametrize("count", [1, 5])
def test_several_matrices_of_different_types_share_an_input(ops, count):
    weights = [make_weight("Q4_1", 48, 256), make_weight("Q8_0", 17, 256), make_weight("F32", 9, 256)]
    biases = [None, random(17, seed=9), None]
    x = random(count, 256, seed=10)
    packed, outs = [ops.pack(w) for w in weights], [torch.empty(count, w.rows) for w in weights]
    run(ops, lambda: ops.linear(x, packed, outs, biases))
    for weight, out, bias in zip(weights, outs, biases, strict=True):
        check(ops, weight, x, out, 0.0 if bias is None else bias)


@TYPE
def test_the_file_layout_multiplies_as_the_packed_one(ops, type_name):
    weight, x = make_weight(type_name, 20, 256), random(4, 256, seed=11)
    assert torch.equal(linear(ops, x, weight), linear(ops, x, ops.pack(weight)))


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_K"])
def test_rows_of_zeros_and_of_large_values_stay_exact(ops, type_name):
    weight = make_weight(type_name, 20, 256)
    x = torch.stack([torch.zeros(256), torch.full((256,), 1e6), random(256, seed=12) * 1e-6])
    got = linear(ops, x, ops.pack(weight))
    assert torch.equal(got[0], torch.zeros(20))
    check(ops, weight, x, got)


@pytest.mark.parametrize("type_name", ["F32", "Q4_1", "Q6_K"])
def test_a_row_that_is_not_finite_leaves_the_others_alone(ops, type_name):
    packed = ops.pack(make_weight(type_name, 20, 256))
    x = random(4, 256, seed=13)
    clean = linear(ops, x, packed)
    x[1, 5] = float("nan")
    x[2, 7] = float("inf")
    got = linear(ops, x, packed)
    assert torch.equal(got[0], clean[0])
    assert torch.equal(got[3], clean[3])


@pytest.mark.parametrize("type_name", ["F32", "Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q4_K"])
@pytest.mark.parametrize("size", [1e-29, 1e-31, 1e-36, 1e-42])
def test_rows_of_tiny_values_give_tiny_products(ops, type_name, size):
    weight = make_weight(type_name, 20, 256)
    got = linear(ops, random(3, 256, seed=14).clamp(-1, 1) * size, ops.pack(weight))
    assert (got.double().abs() <= 1.01 * size * values_of(weight).abs().sum(1) + 1e-37).all()
