"""layer_norm, gelu, put_rows, and rotation by several axes."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from strata_kernels.ops import Rotary, Rows
from tests.support.op_cases import assert_close, random, run

WIDTHS = (1, 7, 32, 72, 1152, 1537)


def layer_norm(ops, x, weight, bias, eps=1e-6):
    out = torch.empty_like(x)
    run(ops, lambda: ops.layer_norm(x, weight, bias, eps, out))
    return out


@pytest.mark.parametrize("width", WIDTHS[1:])
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_layer_norm_is_the_formula(ops, width, offset):
    x, weight, bias = random(9, width) + offset, random(width, seed=1), random(width, seed=2)
    wanted = torch.nn.functional.layer_norm(x.double(), (width,), weight.double(), bias.double(), 1e-6)
    assert_close(layer_norm(ops, x, weight, bias), wanted, 1 + wanted.abs() + offset, 4e-6)


def test_layer_norm_of_equal_values_is_the_bias(ops):
    bias = random(40, seed=2)
    assert torch.equal(layer_norm(ops, torch.full((3, 40), 7.0), random(40), bias), bias.expand(3, 40))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_normed_row_does_not_depend_on_the_others(ops, width):
    x, weight, bias = random(33, width), random(width, seed=1), random(width, seed=2)
    whole = layer_norm(ops, x, weight, bias)
    for start, count in ((0, 1), (7, 1), (32, 1), (4, 8)):
        part = slice(start, start + count)
        assert torch.equal(layer_norm(ops, x[part].clone(), weight, bias), whole[part])


def gelu(ops, x, tanh):
    out = torch.empty_like(x)
    run(ops, lambda: ops.gelu(x, out, tanh))
    return out


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_gelu_is_the_formula(ops, width, tanh):
    x = random(5, width, scale=3.0)
    wanted = torch.nn.functional.gelu(x.double(), approximate="tanh" if tanh else "none")
    # both forms subtract numbers near 1, in f32: the error is one of x
    assert_close(gelu(ops, x, tanh), wanted, x.abs(), 4e-7)


@pytest.mark.parametrize("tanh", [False, True])
def test_extreme_inputs_of_gelu_give_no_nan(ops, tanh):
    got = gelu(ops, torch.tensor([[-1e30, -200.0, -0.0, 0.0, 90.0, 1e30]]), tanh)
    assert torch.isfinite(got).all()
    assert torch.equal(got[0, 2:], torch.tensor([0.0, 0.0, 90.0, 1e30]))
    assert abs(got[0, 1]) < 1e-30


def test_gelu_and_layer_norm_in_place(ops):
    x, weight, bias = random(4, 96), random(96, seed=1), random(96, seed=2)
    normed, curved = layer_norm(ops, x, weight, bias), gelu(ops, x, True)
    first, second = x.clone(), x.clone()
    run(ops, lambda: ops.layer_norm(first, weight, bias, 1e-6, first), lambda: ops.gelu(second, second, True))
    assert torch.equal(first, normed)
    assert torch.equal(second, curved)


def put_rows(ops, x, index, column, out, add):
    got = out.clone()
    run(ops, lambda: ops.put_rows(x, torch.tensor(index, dtype=torch.int32), column, got, add))
    return got


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(("width", "column"), [(5, 0), (5, 3), (64, 64), (70, 10)])
def test_rows_are_put_where_the_index_says(ops, width, column, add):
    x, out, index = random(4, 128), random(6, width, seed=1), [-1, 3, 0, -1, 3, 1]
    wanted = out.clone()
    for row, number in enumerate(index):
        if number >= 0:
            part = x[number, column : column + width]
            wanted[row] = out[row] + part if add else part
    assert torch.equal(put_rows(ops, x, index, column, out, add), wanted)


def test_put_rows_refuses_columns_outside(ops):
    with pytest.raises(ValueError, match="not inside"):
        put_rows(ops, random(4, 8), [0], 5, random(1, 4), False)


def test_put_rows_refuses_an_index_outside(ops):
    with pytest.raises(IndexError):
        put_rows(ops, random(4, 8), [4], 0, random(1, 8), False)


@pytest.mark.parametrize("adjacent", [False, True])
def test_each_pair_turns_by_its_own_axis(ops, adjacent):
    """The same as three rotations by one position each, of which every pair takes one."""
    frequencies = 10000.0 ** -(torch.arange(6, dtype=torch.float32) / 6)
    choice = torch.tensor([0, 1, 2, 0, 1, 0], dtype=torch.int32)
    places = torch.tensor([[3, 4, 900, 0], [7, 8, 1, 5], [0, 2, 6, 5]], dtype=torch.int32)
    zeros = torch.zeros(4, dtype=torch.int32)
    rows = Rows(zeros + 99, zeros, zeros, torch.zeros(1, 1, dtype=torch.int32), axes=places)
    x = random(4, 2, 16)
    got, plain = x.clone(), [x.clone() for _ in range(3)]
    run(ops, lambda: ops.rope(got, rows, Rotary(frequencies, adjacent, axes=choice)))
    for axis, one in enumerate(plain):
        run(ops, lambda one=one, at=dataclasses.replace(rows, positions=places[axis], axes=None): ops.rope(
            one, at, Rotary(frequencies, adjacent)))  # fmt: skip
    for pair, axis in enumerate(choice.tolist()):
        for element in (2 * pair, 2 * pair + 1) if adjacent else (pair, pair + 6):
            assert torch.equal(got[..., element], plain[axis][..., element])
    assert torch.equal(got[..., 12:], x[..., 12:])


def test_without_axes_all_pairs_turn_by_the_position(ops):
    frequencies, choice = torch.ones(4), torch.tensor([0, 1, 2, 0], dtype=torch.int32)
    zeros = torch.zeros(3, dtype=torch.int32)
    rows = Rows(torch.tensor([1, 2, 3], dtype=torch.int32), zeros, zeros, torch.zeros(1, 1, dtype=torch.int32))
    first, second = random(3, 2, 8), random(3, 2, 8)
    run(ops, lambda: ops.rope(first, rows, Rotary(frequencies, axes=choice)), lambda: ops.rope(
        second, rows, Rotary(frequencies)))  # fmt: skip
    assert torch.equal(first, second)
