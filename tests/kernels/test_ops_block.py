"""What rows see when it is not all up to themselves, and the convolution over the rows of a block."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.op_cases import KV_TYPES, assert_close, paged, random, rows_at, run
from tests.support.pages import block_keys

# (sequence, position, first visible, last visible); splits of 128 keys begin, end and lie wholly outside
SIGHTS = [
    (0, 3, 0, 9),
    (0, 4, 0, 9),
    (0, 5, 2, 9),
    (1, 200, 129, 299),
    (1, 201, 127, 299),
    (1, 202, 128, 128),
    (1, 203, 290, 299),
    (1, 204, 0, 255),
    (1, 299, 299, 299),
    (1, 20, 5, 140),
]


def attend(ops, q, filled, sights):
    out = torch.empty_like(q)
    firsts, lasts = (torch.tensor([sight[at] for sight in sights], dtype=torch.int32) for at in (2, 3))
    rows = replace(rows_at(filled.pages, 16, [sight[:2] for sight in sights]), reach=lasts, first=firsts)
    cache = replace(filled.cache, keys=block_keys(filled.cache.keys)) if ops.name == "native" else filled.cache
    run(ops, lambda: ops.attention(q, cache, rows, 0.125, out))
    return out


def oracle(q, filled, sights):
    out = torch.empty(q.shape, dtype=torch.float64)
    for row, (sequence, _, first, last) in enumerate(sights):
        keys, values = filled.keys[sequence][first : last + 1], filled.values[sequence][first : last + 1]
        group = q.shape[1] // keys.shape[1]
        for head in range(q.shape[1]):
            scores = keys[:, head // group] @ q[row, head].double() * 0.125
            out[row, head] = torch.softmax(scores, 0) @ values[:, head // group]
    return out


@pytest.mark.parametrize("dtype", KV_TYPES, ids=["f16", "bf16", "f32", "int8"])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 2, 64), (8, 1, 32), (2, 1, 40)])
def test_rows_see_from_their_first_to_their_last_position(ops, dtype, heads, kv_heads, width):
    filled = paged([40, 300], kv_heads, width, 16, dtype)
    q = random(len(SIGHTS), heads, width, seed=9)
    assert_close(attend(ops, q, filled, SIGHTS), oracle(q, filled, SIGHTS), 4.0, 2e-6)


def test_what_a_row_sees_does_not_depend_on_the_others(ops):
    filled = paged([40, 300], 2, 64, 16, torch.float16)
    q = random(len(SIGHTS), 4, 64, seed=9)
    whole = attend(ops, q, filled, SIGHTS)
    for row in range(len(SIGHTS)):
        assert torch.equal(attend(ops, q[row : row + 1].clone(), filled, SIGHTS[row : row + 1])[0], whole[row])


def test_a_window_as_wide_as_the_context_changes_no_bit(ops):
    filled = paged([40, 300], 2, 64, 16, torch.float16)
    places = [(0, 39), (1, 120), (1, 121), (1, 299)]
    q, plain = random(4, 4, 64, seed=9), torch.empty(4, 4, 64)
    cache = replace(filled.cache, keys=block_keys(filled.cache.keys)) if ops.name == "native" else filled.cache
    run(ops, lambda: ops.attention(q, cache, rows_at(filled.pages, 16, places), 0.125, plain))
    assert torch.equal(attend(ops, q, filled, [(s, p, 0, p) for s, p in places]), plain)


@pytest.mark.parametrize(("first", "last"), [(-1, 5), (6, 5), (0, 16), (0, -1)])
def test_seeing_outside_the_cache_is_an_index_error(ops, first, last):
    filled = paged([16], 1, 32, 16, torch.float32)
    filled = replace(filled, pages=filled.pages[:, :1].contiguous())
    with pytest.raises(IndexError, match="attention"):
        attend(ops, random(1, 1, 32, seed=1), filled, [(0, 3, first, last)])


def convolve(ops, x, change, base, side, sequences):
    out = torch.empty_like(x)
    ids = torch.tensor(sequences, dtype=torch.int32)
    rows = rows_at(torch.zeros(4, 1, dtype=torch.int32), 16, [(0, 0)] * len(sequences))
    run(ops, lambda: ops.block_conv(x, change, base, side, replace(rows, sequences=ids), out))
    return out


@pytest.mark.parametrize(("width", "groups", "taps"), [(64, 4, 2), (48, 3, 3), (20, 20, 2), (32, 1, 1)])
@pytest.mark.parametrize("side", [0, 1])
def test_block_conv_mixes_the_rows_of_one_sequence(ops, width, groups, taps, side):
    sequences = [0, 0, 0, 1, 2, 2]
    x, base = random(6, width, seed=1), random(2, taps, width, seed=2)
    change = random(6, 2 * taps * groups, seed=3)
    wanted, deltas = torch.zeros(6, width, dtype=torch.float64), change.double().view(6, 2, taps, groups)
    for r in range(6):
        for t in range(taps):
            if r - t >= 0 and sequences[r - t] == sequences[r]:
                weight = base[side, t].double() + deltas[r, side, t].repeat_interleave(width // groups)
                wanted[r] += weight * x[r - t].double()
    whole = convolve(ops, x, change, base, side, sequences)
    assert_close(whole, wanted, 4.0, 1e-6)
    part = slice(3, 6)
    assert torch.equal(convolve(ops, x[part].clone(), change[part].clone(), base, side, sequences[part]), whole[part])


def test_block_conv_that_passes_through_changes_no_bit(ops):
    x, base = random(5, 64, seed=1), torch.zeros(2, 2, 64)
    base[:, 0] = 1
    assert torch.equal(convolve(ops, x, torch.zeros(5, 16), base, 1, [0, 0, 0, 1, 1]), x)


@pytest.mark.parametrize(("changes", "width"), [(12, 60), (13, 64), (3, 64), (28, 64)])
def test_block_conv_refuses_shapes_that_do_not_fit(ops, changes, width):
    with pytest.raises(ValueError, match="block_conv"):
        convolve(ops, random(2, 64, seed=1), random(2, changes, seed=1), random(2, 2, width, seed=2), 0, [0, 0])
