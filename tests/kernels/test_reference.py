"""ReferenceOps itself: what it refuses, its cache, and that its rows are exact whatever torch does with threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from strata_kernels.reference.ops import ReferenceOps
from strata_kernels.reference.quant import BLOCKS, row_bytes
from tests.support.op_cases import ALL_TYPES, linear, make_weight, random


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_recording_cannot_start_twice():
    ops = ReferenceOps()
    ops.begin()
    with pytest.raises(RuntimeError, match="already"):
        ops.begin()


def test_a_recording_cannot_end_before_it_starts():
    with pytest.raises(RuntimeError, match="no step"):
        ReferenceOps().end()


def test_outside_a_recording_calls_run_at_once():
    out = torch.zeros(1, 4)
    ReferenceOps().add(torch.ones(1, 4), torch.ones(1, 4), out)
    assert torch.equal(out, torch.full((1, 4), 2.0))


def test_the_cache_changes_no_value():
    weight, x = make_weight("Q5_1", 20, 64), random(3, 64)
    assert torch.equal(linear(ReferenceOps(cache_dequantised=False), x, weight), linear(ReferenceOps(), x, weight))


def test_the_cache_keeps_matrices_apart():
    ops, x = ReferenceOps(), random(3, 64)
    for seed in range(20):  # freed memory is given out again: an address alone would name the wrong matrix
        weight = make_weight("Q8_0", 20, 64, seed=seed)
        assert torch.equal(linear(ops, x, weight), linear(ReferenceOps(), x, weight))


def test_the_shared_tests_cover_every_type():
    assert set(BLOCKS) == set(ALL_TYPES)


def test_packing_gives_the_weight_itself():
    weight = make_weight("Q4_0", 4, 32)
    assert ReferenceOps().pack(weight) is weight


def test_a_layout_of_another_maker_is_refused():
    with pytest.raises(ValueError, match="tiles"):
        ReferenceOps().pack(replace(make_weight("Q4_0", 4, 32), layout="tiles"))


def test_a_type_without_a_decoder_is_refused():
    with pytest.raises(ValueError, match="Q8_1"):
        ReferenceOps().pack(replace(make_weight("Q4_0", 4, 32), type="Q8_1"))


@pytest.mark.parametrize(("x_cols", "out_shape"), [(31, (2, 4)), (32, (2, 5)), (32, (3, 4))])
def test_unfitting_shapes_are_refused(x_cols, out_shape):
    with pytest.raises(ValueError, match="unfitting"):
        ReferenceOps().linear(torch.zeros(2, x_cols), [make_weight("Q8_0", 4, 32)], [torch.zeros(out_shape)])


@pytest.mark.parametrize("shape", [(5001, 577), (49152, 64), (576, 1536)])
def test_rows_are_exact_also_where_torch_uses_several_threads(two_threads, shape):
    weight, x = make_weight("F32", *shape), random(9, shape[1])
    ops = ReferenceOps()
    whole = linear(ops, x, weight)
    for row in range(9):
        assert torch.equal(linear(ops, x[row : row + 1].clone(), weight)[0], whole[row])


def test_large_matrices_are_decoded_in_pieces_without_a_seam():
    weight = make_weight("Q8_0", 70_000, 64)
    x = random(1, 64)
    got = linear(ReferenceOps(), x, weight)
    first, last = replace(weight, rows=10, data=weight.data[:10]), replace(weight, rows=10, data=weight.data[-10:])
    for part, wanted in ((first, got[0, :10]), (last, got[0, -10:])):
        assert (linear(ReferenceOps(), x, part)[0] - wanted).abs().max() <= 1e-6


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_row_bytes_count_whole_blocks(name):
    assert row_bytes(name, 512) == make_weight(name, 1, 512).data.shape[1]
