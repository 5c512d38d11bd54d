"""Index keys, the choice of blocks, and attention over them, for every maker of operations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from strata_kernels.ops import KvLayer, Rotary, Rows
from strata_kernels.ops_streams import IndexLayer, IndexNorm, Sparse
from tests.support.op_cases import KV_TYPES, assert_close, paged, random, rows_at, run
from tests.support.pages import block_keys

GROUP, WIDTH, PAGE = 4, 48, 16
ROTARY = Rotary(torch.tensor([1.0, 0.3, 0.05, 0.004]))
NORM = IndexNorm(1 + random(WIDTH, seed=8, scale=0.2), 1e-6, ROTARY)
TYPE = pytest.mark.parametrize("dtype", KV_TYPES[:3], ids=["f16", "bf16", "f32"])


def rows_of(pages: Tensor, sequence: int, first: int, count: int, page_tokens: int = PAGE) -> Rows:
    return rows_at(pages, page_tokens, [(sequence, first + n) for n in range(count)])


def block_key(raw: Tensor, position: int) -> Tensor:
    """The key of the block that ends at `position`, f64."""
    mean = raw[position - GROUP + 1 : position + 1].double().mean(0)
    key = mean * torch.rsqrt(mean.square().mean() + 1e-6) * NORM.weight.double()
    angles = ROTARY.inverse_frequencies.double() * (position + 1 - GROUP)
    a, b = key[:4].clone(), key[4:8].clone()
    key[:4], key[4:8] = a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()
    return key


def stored(
    ops, raw: Tensor, chunks: list[int], page_tokens: int = PAGE, group: int = GROUP
) -> tuple[IndexLayer, Tensor]:
    """A cache with the keys of one sequence stored in these chunks, and its pages."""
    count = -(-len(raw) // page_tokens)
    cache = IndexLayer(
        torch.full((count + 2, page_tokens, WIDTH), 7.0), torch.full((count + 2, page_tokens // group, WIDTH), 9.0)
    )
    pages = (torch.randperm(count + 2, generator=torch.Generator().manual_seed(1))[None, :].int()).contiguous()
    at = 0
    for size in chunks:
        keys, rows = raw[at : at + size].clone(), rows_of(pages, 0, at, size, page_tokens)
        run(ops, lambda keys=keys, rows=rows: ops.index_store(keys, NORM, cache, rows))
        at += size
    return cache, pages


@pytest.mark.parametrize("page_tokens", [4, 8, 16, 48])
def test_block_keys_are_made_of_their_tokens(ops, page_tokens):
    raw = random(70, WIDTH, seed=2)
    cache, pages = stored(ops, raw, [70], page_tokens)
    in_page = page_tokens // GROUP
    for block in range(70 // GROUP):
        got = cache.blocks[pages[0, block // in_page], block % in_page]
        assert_close(got, block_key(raw, block * GROUP + GROUP - 1), 3.0, 2e-6)
    assert torch.equal(cache.raw[pages[0, 69 // page_tokens], 69 % page_tokens], raw[69])


@pytest.mark.parametrize("chunks", [[1] * 70, [3, 1, 2, 7, 50, 7]], ids=["one by one", "odd chunks"])
def test_block_keys_do_not_depend_on_the_chunks(ops, chunks):
    raw = random(70, WIDTH, seed=2)
    whole, pages = stored(ops, raw, [70])
    parts, _ = stored(ops, raw, chunks)
    used = pages[0, : 70 // PAGE].long()
    assert torch.equal(whole.blocks[used], parts.blocks[used])
    assert torch.equal(whole.raw, parts.raw)


def choose(ops, q: Tensor, cache: IndexLayer, rows: Rows, sparse: Sparse) -> tuple[Tensor, Tensor]:
    chosen = torch.full((len(q), sparse.blocks), -1, dtype=torch.int32)
    near = torch.full((len(q),), -1, dtype=torch.int32)
    run(ops, lambda: ops.index_select(q, cache, rows, sparse, chosen, near))
    return chosen, near


def test_the_best_blocks_are_chosen_in_order(ops):
    raw = random(70, WIDTH, seed=2)
    cache, pages = stored(ops, raw, [70])
    q, sparse = random(70, 3, WIDTH, seed=3), Sparse(5, GROUP)
    chosen, near = choose(ops, q, cache, rows_of(pages, 0, 0, 70), sparse)
    assert sparse.dense_tokens == 23
    assert near.tolist() == [*range(23), *[0] * 47]
    for position in range(23, 70):
        keys = torch.stack([block_key(raw, b * GROUP + GROUP - 1) for b in range((position + 1) // GROUP)])
        scores = torch.relu(keys @ q[position].double().T).sum(-1) / math.sqrt(WIDTH)
        best = scores.topk(5).indices.sort().values
        assert chosen[position].tolist() == best.tolist()


def test_equal_scores_take_the_first_blocks(ops):
    cache, pages = stored(ops, random(70, WIDTH, seed=2), [70])
    q = torch.zeros(1, 3, WIDTH)
    chosen, _ = choose(ops, q, cache, rows_of(pages, 0, 69, 1), Sparse(5, GROUP))
    assert chosen[0].tolist() == [0, 1, 2, 3, 4]


def test_a_choice_does_not_depend_on_batch_mates_or_on_values_that_are_no_numbers(ops):
    cache, pages = stored(ops, random(70, WIDTH, seed=2), [70])
    q, sparse = random(6, 3, WIDTH, seed=3), Sparse(5, GROUP)
    whole, _ = choose(ops, q, cache, rows_of(pages, 0, 64, 6), sparse)
    broken = q.clone()
    broken[2] = float("nan")
    with_broken, _ = choose(ops, broken, cache, rows_of(pages, 0, 64, 6), sparse)
    alone, _ = choose(ops, q[4:5].clone(), cache, rows_of(pages, 0, 68, 1), sparse)
    assert torch.equal(alone[0], whole[4])
    assert torch.equal(with_broken[[0, 1, 3, 4, 5]], whole[[0, 1, 3, 4, 5]])
    assert 0 <= with_broken[2].min() and with_broken[2].max() < 17


def wanted_attention(q: Tensor, keys: Tensor, values: Tensor, tokens: list[int]) -> Tensor:
    """One row in f64 over the given tokens."""
    out, group = torch.empty(q.shape, dtype=torch.float64), q.shape[0] // keys.shape[1]
    for head in range(q.shape[0]):
        scores = keys[tokens, head // group] @ q[head].double() * q.shape[1] ** -0.5
        out[head] = torch.softmax(scores, 0) @ values[tokens, head // group]
    return out


def attend(ops, q: Tensor, chosen: Tensor, filled, rows: Rows, sparse: Sparse) -> Tensor:
    out, cache = torch.full_like(q, 5.0), filled.cache
    cache = KvLayer(block_keys(cache.keys), cache.values) if ops.name == "native" else cache
    run(ops, lambda: ops.sparse_attention(q, chosen, cache, rows, sparse, out))
    return out


@TYPE
@pytest.mark.parametrize(("heads", "kv_heads", "width", "page"), [(8, 2, 64, 16), (12, 1, 33, 8), (3, 3, 32, 48)])
def test_rows_attend_to_their_blocks_and_the_tail(ops, dtype, heads, kv_heads, width, page):
    lengths, sparse = [31, 90], Sparse(4, GROUP)
    filled = paged(lengths, kv_heads, width, page, dtype)
    places = [(0, 3), (0, 18), (0, 19), (0, 30), (1, 40), (1, 88), (1, 89), (1, 19)]
    q = random(len(places), heads, width, seed=9)
    chosen = torch.full((len(places), 4), -1, dtype=torch.int32)
    for row, (_, position) in enumerate(places):
        if position >= sparse.dense_tokens:
            complete = (position + 1) // GROUP
            chosen[row] = torch.randperm(complete, generator=torch.Generator().manual_seed(row))[:4].sort().values.int()
    got = attend(ops, q, chosen, filled, rows_at(filled.pages, page, places), sparse)
    for row, (sequence, position) in enumerate(places):
        if position < sparse.dense_tokens:
            assert torch.equal(got[row], torch.full_like(got[row], 5.0))
            continue
        tail = (position + 1) // GROUP * GROUP
        tokens = [b * GROUP + n for b in chosen[row].tolist() for n in range(GROUP)] + list(range(tail, position + 1))
        wanted = wanted_attention(q[row], filled.keys[sequence], filled.values[sequence], tokens)
        assert_close(got[row], wanted, 4.0, 2e-6)


def test_many_chosen_tokens_are_summed_accurately(ops):
    filled, sparse = paged([3000], 2, 64, 32, torch.float16), Sparse(512, GROUP)
    q, place = random(1, 6, 64, seed=9), [(0, 2998)]
    chosen = torch.randperm(749, generator=torch.Generator().manual_seed(0))[:512].sort().values.int()[None, :]
    got = attend(ops, q, chosen.contiguous(), filled, rows_at(filled.pages, 32, place), sparse)
    tokens = [b * GROUP + n for b in chosen[0].tolist() for n in range(GROUP)] + [2996, 2997, 2998]
    assert_close(got[0], wanted_attention(q[0], filled.keys[0], filled.values[0], tokens), 1.0, 2e-6)


def test_threads_and_batch_mates_do_not_change_the_bits(threaded_maker):
    filled, sparse = paged([200, 90], 2, 64, PAGE, torch.float16), Sparse(4, GROUP)
    places = [(0, 199), (0, 150), (1, 89), (1, 88)]
    q, chosen = random(4, 12, 64, seed=9), torch.tensor([[0, 3, 7, 20]] * 4, dtype=torch.int32)
    rows = rows_at(filled.pages, PAGE, places)
    first, *others = [attend(threaded_maker.make(n), q, chosen, filled, rows, sparse) for n in (1, 2, 3)]
    assert all(torch.equal(first, other) for other in others)
    for r, place in enumerate(places):
        row = rows_at(filled.pages, PAGE, [place])
        alone = attend(threaded_maker.make(3), q[r : r + 1].clone(), chosen[r : r + 1].clone(), filled, row, sparse)
        assert torch.equal(alone[0], first[r])


def test_a_block_that_cannot_be_seen_is_an_error(ops):
    filled, sparse = paged([90], 2, 64, PAGE, torch.float32), Sparse(2, GROUP)
    chosen = torch.tensor([[0, 10]], dtype=torch.int32)
    with pytest.raises(IndexError):
        attend(ops, random(1, 8, 64), chosen, filled, rows_at(filled.pages, PAGE, [(0, 40)]), sparse)


def test_a_slot_outside_the_index_is_an_error(ops):
    cache = IndexLayer(torch.zeros(1, PAGE, WIDTH), torch.zeros(1, PAGE // GROUP, WIDTH))
    rows = rows_at(torch.tensor([[1]], dtype=torch.int32), PAGE, [(0, 0)])
    with pytest.raises(IndexError):
        run(ops, lambda: ops.index_store(random(1, WIDTH), NORM, cache, rows))
