"""Residual streams and hashed n-grams against direct formulas, for every maker of operations."""

from __future__ import annotations

import math
import random as plain_random

import pytest
import torch

from strata_kernels.ops import Rows
from strata_kernels.ops_streams import Ngrams
from tests.support.op_cases import BLOCK, assert_close, make_weight, random, run, values_of

SHAPES = pytest.mark.parametrize(("rows", "streams", "width"), [(1, 4, 64), (5, 4, 96), (3, 2, 33), (2, 3, 7)])
NGRAMS = Ngrams((23703573157769, 20109073645365, 8052911324071), (101, 103, 107, 109), (0, 101, 204, 311), eos=5)


@SHAPES
def test_streams_are_normed_one_by_one(ops, rows, streams, width):
    x, weight = random(rows, streams, width, seed=1, scale=3), random(streams, width, seed=2)
    out = torch.empty_like(x)
    run(ops, lambda: ops.stream_norm(x, weight, 1e-6, out))
    wide = x.double()
    wanted = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.double()
    assert_close(out, wanted, wanted.abs() + 1e-6, 3e-6)


def test_a_norm_may_replace_its_input(ops):
    x, weight = random(3, 4, 32, seed=1), random(4, 32, seed=2)
    own, out = x.clone(), torch.empty_like(x)
    run(ops, lambda: ops.stream_norm(x, weight, 1e-6, out), lambda: ops.stream_norm(own, weight, 1e-6, own))
    assert torch.equal(own, out)


@pytest.mark.parametrize("shape", [(1, 320), (3, 1000), (2, 3)])
def test_silu_of_scaled_values(ops, shape):
    x = random(*shape, seed=3, scale=20)
    out = torch.empty_like(x)
    run(ops, lambda: ops.silu_scaled(x, 0.25, out))
    wanted = torch.nn.functional.silu(x.double() / 4)
    assert_close(out, wanted, wanted.abs() + 1e-6, 2e-6)


@SHAPES
def test_the_gated_mean_over_streams(ops, rows, streams, width):
    x, gate = random(rows, streams, width, seed=1), random(rows, streams, width, seed=2, scale=4)
    out = torch.empty(rows, width)
    run(ops, lambda: ops.stream_mix(x, gate, out))
    assert_close(out, (torch.sigmoid(gate.double()) * x.double()).mean(1), 1.0, 1e-6)


@SHAPES
def test_a_result_is_added_to_every_stream_by_its_weight(ops, rows, streams, width):
    y, gate, before = random(rows, width, seed=1), random(rows, streams, seed=2, scale=9), random(rows, streams, width)
    out = before.clone()
    run(ops, lambda: ops.stream_add(y, gate, out))
    weights = 2 * torch.sigmoid(gate.double() / streams)
    assert_close(out, before.double() + weights[..., None] * y.double()[:, None], 4.0, 1e-6)


@SHAPES
def test_the_gate_of_each_stream(ops, rows, streams, width):
    key, query = random(rows, streams, width, seed=1), random(rows, streams, width, seed=2)
    key[0, 0] = 0  # no agreement at all: a gate of one half
    value, out = random(rows, width, seed=3), torch.empty(rows, streams, width)
    run(ops, lambda: ops.stream_gate(key, query, value, out))
    a = (key.double() * query.double()).sum(-1) / math.sqrt(width)
    gate = torch.sigmoid(a.sign() * a.abs().clamp_min(1e-6).sqrt())
    assert_close(out, gate[..., None] * value.double()[:, None], 3.0, 2e-6)
    assert torch.allclose(out[0, 0], value[0] / 2)


def test_rows_do_not_depend_on_each_other(ops):
    x, gate, y = random(9, 4, 40, seed=1), random(9, 4, 40, seed=2), random(9, 40, seed=3)
    weight, inject = random(4, 40, seed=4), random(9, 4, seed=5)

    def all_of(part: slice) -> list[torch.Tensor]:
        own, count = [t[part].clone() for t in (x, gate, y, inject)], len(range(9)[part])
        outs = [torch.empty(count, 4, 40), torch.empty(count, 40), own[0].clone(), torch.empty(count, 4, 40)]
        run(
            ops,
            lambda: ops.stream_norm(own[0], weight, 1e-6, outs[0]),
            lambda: ops.stream_mix(own[0], own[1], outs[1]),
            lambda: ops.stream_add(own[2], own[3], outs[2]),
            lambda: ops.stream_gate(own[0], own[1], own[2], outs[3]),
        )
        return outs

    whole = all_of(slice(0, 9))
    for r in range(9):
        assert all(torch.equal(a[0], b[r]) for a, b in zip(all_of(slice(r, r + 1)), whole, strict=True))


def by_definition(ids: list[int], at: int) -> list[int]:
    """Rows of token `at`, from the text's own words: an end of sequence hides itself and what is before it."""
    seen = [ids[at]]
    for back in (1, 2):
        hidden = at - back < 0 or NGRAMS.eos in ids[at - back : at]
        seen.append(NGRAMS.eos if hidden else ids[at - back])
    m = NGRAMS.multipliers
    pair = seen[0] * m[0] ^ seen[1] * m[1]
    keys = [pair, pair, pair ^ seen[2] * m[2], pair ^ seen[2] * m[2]]
    return [key % size + offset for key, size, offset in zip(keys, NGRAMS.sizes, NGRAMS.offsets, strict=True)]


def hashed(ops, past, pieces: list[tuple[int, int, list[int]]], slots: list[int]) -> torch.Tensor:
    """Rows of one step. `pieces`: (sequence, first position, ids)."""
    ids = torch.tensor([i for _, _, piece in pieces for i in piece], dtype=torch.int32)
    places = [(s, first + k) for s, first, piece in pieces for k in range(len(piece))]
    positions = torch.tensor([p for _, p in places], dtype=torch.int32)
    sequences = torch.tensor([s for s, _ in places], dtype=torch.int32)
    states = torch.tensor(slots, dtype=torch.int32)
    rows = Rows(positions, sequences, positions, torch.zeros(len(slots), 1, dtype=torch.int32), states)
    out = torch.full((len(ids), 4), -1, dtype=torch.int32)
    run(ops, lambda: ops.ngram_rows(ids, NGRAMS, past, rows, out))
    return out


@pytest.mark.parametrize("chunks", [[40], [1, 1, 2, 5, 31], [1] * 40, [2, 38]], ids=str)
def test_hashes_are_the_same_however_a_sequence_is_cut(ops, chunks):
    ids = plain_random.Random(3).choices(range(8), k=40)  # many ends of sequence
    assert ids.count(5) > 3
    past, at, found = torch.full((3, 2), 7, dtype=torch.int32), 0, []
    for size in chunks:
        found.append(hashed(ops, past, [(0, at, ids[at : at + size])], [2]))
        at += size
    assert torch.cat(found).tolist() == [by_definition(ids, n) for n in range(40)]
    assert torch.equal(past[:2], torch.full((2, 2), 7, dtype=torch.int32))


def test_sequences_of_one_step_have_their_own_history(ops):
    past, first, second = torch.full((2, 2), 5, dtype=torch.int32), [1, 2, 3, 4], [9, 8, 7]
    hashed(ops, past, [(0, 0, first[:1]), (1, 0, second[:2])], [1, 0])
    got = hashed(ops, past, [(0, 1, first[1:]), (1, 2, second[2:])], [1, 0])
    wanted = [by_definition(first, n) for n in (1, 2, 3)] + [by_definition(second, 2)]
    assert got.tolist() == wanted


def test_a_slot_used_before_starts_anew(ops):
    past = torch.tensor([[3, 4]], dtype=torch.int32)
    assert hashed(ops, past, [(0, 0, [6])], [0]).tolist() == [by_definition([6], 0)]


def test_a_state_slot_outside_the_memory_is_an_error(ops):
    with pytest.raises(IndexError):
        hashed(ops, torch.zeros(1, 2, dtype=torch.int32), [(0, 0, [6])], [1])


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16", "Q8_0", "IQ4_NL", "Q4_K", "Q2_0", "IQ3_S"])
def test_rows_come_out_of_shards_of_every_type(ops, type_name):
    width = max(160, BLOCK[type_name])
    width += -width % BLOCK[type_name]
    shards = tuple(make_weight(type_name, 6, width, seed=n) for n in range(3))
    index = torch.tensor([0, 5, 6, 17, 11, 12, 0], dtype=torch.int32)
    out = torch.empty(7, width)
    run(ops, lambda: ops.shard_rows(index, shards, out))
    table = torch.cat([values_of(shard) for shard in shards])
    wanted = table[index.long()]
    assert_close(out, wanted, wanted.abs() + 1e-6, 1e-6)


@pytest.mark.parametrize("row", [-1, 18])
def test_a_row_outside_the_shards_is_an_error(ops, row):
    shards = tuple(make_weight("F32", 6, 8, seed=n) for n in range(3))
    index, out = torch.tensor([row], dtype=torch.int32), torch.empty(1, 8)
    with pytest.raises(IndexError):
        run(ops, lambda: ops.shard_rows(index, shards, out))


def test_a_table_larger_than_memory_is_read_where_it_is_asked(ops, tmp_path):
    """A sparse file of 48 GB: rows far behind 2^32 bytes and elements are found, nothing else is touched."""
    import mmap

    import numpy as np

    from strata_kernels.ops import Weight

    rows, width = 40_000_000, 320
    path = tmp_path / "table"
    with path.open("wb+") as file:
        file.truncate(2 * rows * width * 2)
        for row in (0, rows - 1, rows, 2 * rows - 1):
            file.seek(row * width * 2)
            file.write(np.full(width, row % 1000, np.float16).tobytes())
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    half = rows * width * 2
    data = np.frombuffer(mapped, np.uint8)
    shards = tuple(Weight("F16", rows, width, data[n * half : (n + 1) * half].reshape(rows, -1)) for n in range(2))
    index = torch.tensor([0, rows - 1, rows, 2 * rows - 1, 77], dtype=torch.int32)
    out = torch.empty(5, width)
    run(ops, lambda: ops.shard_rows(index, shards, out))
    assert out[:, 5].tolist() == [0, 999, 0, 999, 0]
