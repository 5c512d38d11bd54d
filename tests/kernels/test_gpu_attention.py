"""Attention of the GPU's kernels in Triton's interpreter: small cases of what the shared modules test at length."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from strata_kernels.gpu.attention import SPLITS, STRETCH
from strata_kernels.ops import KvLayer, Ops, Rotary, Rows
from strata_kernels.ops_streams import IndexLayer, Sparse
from strata_kernels.reference.ops import ReferenceOps
from tests.kernels.test_ops_sparse import NORM, WIDTH
from tests.support.op_cases import (
    KV_TYPES,
    NIBBLES,
    Paged,
    assert_close,
    attention_oracle,
    key_type,
    make_weight,
    paged,
    random,
    rows_at,
    run,
)
from tests.support.op_makers import triton_maker

TYPE = pytest.mark.parametrize("dtype", [*KV_TYPES, NIBBLES], ids=["f16", "bf16", "f32", "int8", "q4"])
FEW, MANY = 2e-6, 1e-3  # tolerance of up to 16 rows (22 bits of a query, 11 of a f16 value), and of prompts (f16)


@pytest.fixture(scope="module")
def gpu() -> Ops:
    maker = triton_maker()
    if maker.absent:
        pytest.skip(maker.absent)
    return maker.make(1)


def attend(ops: Ops, q: Tensor, filled: Paged, rows: Rows, scale: float = 0.125) -> Tensor:
    out = torch.full_like(q, float("nan"))
    run(ops, lambda: ops.attention(q, filled.cache, rows, scale, out))
    return out


@TYPE
def test_few_rows_of_several_sequences(gpu: Ops, dtype: torch.dtype) -> None:
    filled = paged([3, 90], 1, 20, 16, dtype)
    places = [(0, 2), (1, 63), (1, 88)]  # one page, a whole stretch, two stretches
    q = random(3, 3, 20, seed=9)
    got = attend(gpu, q, filled, rows_at(filled.pages, 16, places))
    assert_close(got, attention_oracle(q, filled, places, 0.125), 4.0, FEW)


@TYPE
def test_many_rows_of_several_sequences(gpu: Ops, dtype: torch.dtype) -> None:
    filled = paged([40, 70], 1, 32, 32, dtype)
    places = [(1, p) for p in range(40, 52)] + [(0, p) for p in range(8)]
    q = random(20, 2, 32, seed=9)
    got = attend(gpu, q, filled, rows_at(filled.pages, 32, places))
    assert_close(got, attention_oracle(q, filled, places, 0.125), 4.0, MANY)


@pytest.mark.parametrize("count", [3, 17])
@pytest.mark.parametrize("page", [1, 48])
def test_pages_that_tiles_do_not_fit(gpu: Ops, count: int, page: int) -> None:
    filled = paged([60], 1, 16, page, torch.float16)
    places = [(0, 59 - n) for n in range(count)]
    q = random(count, 1, 16, seed=9)
    got = attend(gpu, q, filled, rows_at(filled.pages, page, places))
    assert_close(got, attention_oracle(q, filled, places, 0.125), 4.0, FEW if count == 3 else MANY)


@pytest.mark.parametrize("count", [4, 18])
def test_windows_and_rows_that_look_ahead(gpu: Ops, count: int) -> None:
    filled = paged([150], 1, 16, 16, torch.float32)
    places = [(0, 20 + 7 * n) for n in range(count)]
    q, positions = random(count, 2, 16, seed=9), torch.tensor([p for _, p in places])
    reach, first = (positions + 9).clamp_max(149).int(), (positions - 70).clamp_min(0).int()
    rows = replace(rows_at(filled.pages, 16, places), reach=reach, first=first)
    wanted = torch.empty_like(q)
    run(ReferenceOps(), lambda: ReferenceOps().attention(q, filled.cache, rows, 0.125, wanted))
    assert_close(attend(gpu, q, filled, rows), wanted, 4.0, FEW if count == 4 else MANY)


def test_the_bits_of_a_row_depend_on_its_own_tokens_alone(gpu: Ops) -> None:
    """Not on the rows beside it, their sequences, or how many pages a sequence may have."""
    filled = paged([100, 5], 1, 16, 16, torch.int8)
    places = [(0, 99), (1, 4), (0, 70), (0, 3)]
    q, rows = random(4, 2, 16, seed=9), rows_at(filled.pages, 16, places)
    whole = attend(gpu, q, filled, rows)
    wider = replace(rows, pages=torch.cat([filled.pages, torch.zeros(2, 30, dtype=torch.int32)], 1))
    assert torch.equal(attend(gpu, q, filled, wider), whole)
    alone = rows_at(filled.pages, 16, places[2:3])
    assert torch.equal(attend(gpu, q[2:3].clone(), filled, alone)[0], whole[2])


def test_rows_that_see_nothing_become_zeros(gpu: Ops) -> None:
    """Rows that only fill a step up: no position, no sequence, no slot."""
    filled = paged([20], 1, 16, 16, torch.float16)
    for count in (2, 17):
        numbers = torch.full((count,), -1, dtype=torch.int32)
        numbers[0] = 0
        rows, q = Rows(numbers, numbers, numbers, filled.pages), random(count, 2, 16)
        before = filled.cache.keys.clone()
        got = attend(gpu, q, filled, rows)
        assert got[0].isfinite().all() and got[0].any()
        assert not got[1:].nan_to_num(0.0).any()
        k = random(count, 1, 16, seed=3)
        run(gpu, lambda rows=replace(rows, slots=numbers - 1), k=k: gpu.kv_store(k, k, filled.cache, rows))
        assert torch.equal(filled.cache.keys, before)


@TYPE
def test_rows_are_stored_as_the_reference_stores_them(gpu: Ops, dtype: torch.dtype) -> None:
    scales = (torch.ones(3, 2, 16), torch.ones(3, 2, 16)) if dtype is torch.int8 else (None, None)
    values = (
        torch.zeros(3, 2, 16, 40, dtype=torch.uint8) if dtype is NIBBLES else torch.zeros(3, 2, 16, 33, dtype=dtype)
    )
    own = KvLayer(torch.zeros(3, 2, 16, 33, dtype=key_type(dtype)), values, *scales)
    other = KvLayer(own.keys.clone(), values.clone(), *(None if s is None else s.clone() for s in scales))
    k, v = random(3, 2, 33, seed=1, scale=7), random(3, 2, 33, seed=2)
    k[1, 0], v[2, 1, 4] = 0, float("inf")
    rows = rows_at(torch.tensor([[2, 1]], dtype=torch.int32), 16, [(0, 0), (0, 15), (0, 16)])
    for ops, cache in ((gpu, own), (ReferenceOps(), other)):
        run(ops, lambda ops=ops, cache=cache: ops.kv_store(k, v, cache, rows))
    for name in ("keys", "values", "key_scales", "value_scales"):
        mine, wanted = getattr(own, name), getattr(other, name)
        assert mine is wanted or torch.equal(mine.nan_to_num(7.0), wanted.nan_to_num(7.0)), name


@pytest.mark.slow
def test_stretches_grow_where_there_would_be_too_many(gpu: Ops) -> None:
    length = SPLITS * STRETCH + 70
    filled = paged([length], 1, 16, 32, torch.float16)
    places = [(0, length - 1), (0, SPLITS * STRETCH - 1)]
    q = random(2, 2, 16, seed=9)
    got = attend(gpu, q, filled, rows_at(filled.pages, 32, places))
    assert_close(got, attention_oracle(q, filled, places, 0.125), 1.0, FEW)


def test_rotation_a_million_tokens_out(gpu: Ops) -> None:
    places, frequencies = torch.tensor([0, 262143, 1000000, 1048575], dtype=torch.int32), torch.tensor([1.0, 0.7, 1e-3])
    x = torch.cat([torch.ones(4, 1, 3), torch.zeros(4, 1, 3)], -1)
    rows = Rows(places, places, places, torch.zeros(1, 1, dtype=torch.int32))
    run(gpu, lambda: gpu.rope(x, rows, Rotary(frequencies)))
    angles = (places[:, None].float() * frequencies).double()[:, None]
    assert_close(x, torch.cat([angles.cos(), angles.sin()], -1), 1.0, 2e-7)


def test_keys_of_blocks_are_those_of_the_reference(gpu: Ops) -> None:
    raw, pages = random(12, WIDTH, seed=2), torch.tensor([[1, 0]], dtype=torch.int32)
    rows, found = rows_at(pages, 8, [(0, n) for n in range(12)]), []
    for ops in (gpu, ReferenceOps()):
        found.append(IndexLayer(torch.zeros(2, 8, WIDTH), torch.zeros(2, 2, WIDTH)))
        run(ops, lambda ops=ops: ops.index_store(raw, NORM, found[-1], rows))
    assert torch.equal(found[0].raw, found[1].raw)
    assert_close(found[0].blocks, found[1].blocks, 3.0, 2e-6)


def test_blocks_are_chosen_and_attended_to(gpu: Ops) -> None:
    """As the reference does it, rows that see too little to choose among them."""
    filled, sparse = paged([70], 1, 16, 16, torch.float16), Sparse(3, 4)
    index = IndexLayer(torch.zeros(6, 16, WIDTH), random(6, 4, WIDTH, seed=2))
    rows = rows_at(filled.pages, 16, [(0, 69), (0, 14), (0, 15), (0, 66)])
    q, index_q = random(4, 2, 16, seed=3), random(4, 3, WIDTH, seed=4)
    index_q[3] = 0  # all scores equal: the first blocks
    found = []
    for ops in (gpu, ReferenceOps()):
        chosen, near = torch.full((4, 3), -1, dtype=torch.int32), torch.full((4,), -1, dtype=torch.int32)
        out = torch.full_like(q, 5.0)
        run(
            ops,
            lambda ops=ops, chosen=chosen, near=near: ops.index_select(index_q, index, rows, sparse, chosen, near),
            lambda ops=ops, chosen=chosen, out=out: ops.sparse_attention(q, chosen, filled.cache, rows, sparse, out),
        )
        found.append((chosen, near, out))
    assert torch.equal(found[0][0], found[1][0]) and found[0][0][3].tolist() == [0, 1, 2]
    assert found[0][1].tolist() == found[1][1].tolist() == [0, 14, 0, 0]
    assert_close(found[0][2], found[1][2], 4.0, FEW)
    assert (found[0][2][1] == 5.0).all()


def test_tables_in_mapped_files_are_refused(gpu: Ops) -> None:
    shard = make_weight("F32", 6, 8)
    with pytest.raises(ValueError, match="--device cpu"):
        gpu.shard_rows(torch.zeros(1, dtype=torch.int32), (shard,), torch.empty(1, 8))
