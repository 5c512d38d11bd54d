"""rope: both pairings, part of a head, scale, and positions far out."""

from __future__ import annotations

import pytest
import torch

from strata_kernels.ops import Rotary, Rows
from tests.support.op_cases import assert_close, random, run

POSITIONS = [0, 1, 2, 31, 32, 33, 1000, 8191, 131071]


def rows_of(positions) -> Rows:
    count = len(positions)
    zeros = torch.zeros(count, dtype=torch.int32)
    return Rows(torch.tensor(positions, dtype=torch.int32), zeros, zeros, torch.zeros(1, 1, dtype=torch.int32))


def rotary(n: int, **options) -> Rotary:
    return Rotary(10000.0 ** -(torch.arange(n, dtype=torch.float32) / n), **options)


def oracle(x, positions, how: Rotary):
    """f64 rotation by angles that are f32 products, as the contract has them."""
    n, out = how.inverse_frequencies.numel(), x.double().clone()
    angles = (torch.tensor(positions, dtype=torch.float32)[:, None] * how.inverse_frequencies).double()[:, None]
    cos, sin = angles.cos() * how.scale, angles.sin() * how.scale
    first = slice(0, 2 * n, 2) if how.adjacent else slice(0, n)
    second = slice(1, 2 * n, 2) if how.adjacent else slice(n, 2 * n)
    a, b = x.double()[..., first], x.double()[..., second]
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


def rotated(ops, x, positions, how):
    got, rows = x.clone(), rows_of(positions)
    run(ops, lambda: ops.rope(got, rows, how))
    return got


@pytest.mark.parametrize("adjacent", [False, True])
@pytest.mark.parametrize(("heads", "width", "n"), [(1, 8, 4), (3, 64, 32), (9, 64, 32), (2, 128, 32), (2, 10, 3)])
def test_pairs_are_rotated_by_the_position(ops, adjacent, heads, width, n):
    x, how = random(len(POSITIONS), heads, width), rotary(n, adjacent=adjacent)
    assert_close(rotated(ops, x, POSITIONS, how), oracle(x, POSITIONS, how), x.abs().max(), 1e-6)


def test_elements_after_the_rotated_ones_stay(ops):
    x = random(3, 2, 128)
    got = rotated(ops, x, [5, 6, 7], rotary(32))
    assert torch.equal(got[..., 64:], x[..., 64:])


def test_position_zero_changes_nothing(ops):
    x = random(1, 3, 64)
    assert torch.equal(rotated(ops, x, [0], rotary(32)), x)


@pytest.mark.parametrize("adjacent", [False, True])
def test_the_scale_multiplies_cosine_and_sine(ops, adjacent):
    x, how = random(3, 2, 64), rotary(32, adjacent=adjacent, scale=1.25)
    assert_close(rotated(ops, x, [0, 9, 99], how), oracle(x, [0, 9, 99], how), x.abs().max(), 1e-6)


@pytest.mark.parametrize("adjacent", [False, True])
def test_a_row_does_not_depend_on_the_others(ops, adjacent):
    x, how = random(33, 3, 64), rotary(32, adjacent=adjacent)
    positions = list(range(100, 133))
    whole = rotated(ops, x, positions, how)
    for start, count in ((0, 1), (7, 1), (32, 1), (4, 8)):
        part = slice(start, start + count)
        assert torch.equal(rotated(ops, x[part].clone(), positions[part], how), whole[part])


def test_queries_and_keys_of_one_step_turn_alike(ops):
    """Two calls with the same rows in one step, as a layer makes them."""
    q, k, rows, how = random(4, 3, 64), random(4, 3, 64), rows_of([3, 4, 5, 900]), rotary(32)
    run(ops, lambda: ops.rope(q, rows, how), lambda: ops.rope(k, rows, how))
    assert torch.equal(q, k)


def test_two_rotations_of_one_step_are_kept_apart(ops):
    """Other frequencies, another pairing and another scale in the same step."""
    hows = [rotary(32), rotary(16), rotary(32, adjacent=True), rotary(32, scale=0.5)]
    xs, rows = [random(4, 3, 64, seed=n) for n in range(4)], rows_of([3, 4, 5, 900])
    outs = [x.clone() for x in xs]
    run(ops, *[lambda out=out, how=how: ops.rope(out, rows, how) for out, how in zip(outs, hows, strict=True)])
    for x, out, how in zip(xs, outs, hows, strict=True):
        assert_close(out, oracle(x, [3, 4, 5, 900], how), x.abs().max(), 1e-6)
