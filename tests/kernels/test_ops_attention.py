"""kv_store and attention over shuffled pages: cache types, head groups, page borders, several sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from strata_kernels.ops import KvLayer
from strata_kernels.reference.attention import pack_values, quantise, unpack_values
from strata_kernels.reference.quant import unpack
from tests.support.op_cases import (
    KV_TYPES,
    NIBBLES,
    Paged,
    assert_close,
    attention_oracle,
    key_type,
    paged,
    random,
    rows_at,
    run,
    seen_in_cache,
)
from tests.support.pages import block_keys, key_rows

TYPE = pytest.mark.parametrize("dtype", [*KV_TYPES, NIBBLES], ids=["f16", "bf16", "f32", "int8", "q4"])
PAGED = pytest.mark.parametrize("dtype", [torch.float16, torch.int8, NIBBLES], ids=["f16", "int8", "q4"])
LENGTHS = (1, 15, 16, 17, 40, 70)
PAGE = 16
# both ends of pages, the first token, and a long one; mixed sequences
PLACES = [(0, 0), (1, 14), (2, 15), (3, 16), (4, 15), (4, 16), (4, 39), (5, 31), (5, 32), (5, 69), (3, 0), (1, 7)]


def stored_by(ops, cache):
    """The cache as if `ops` itself had stored what this one holds in rows."""
    return replace(cache, keys=block_keys(cache.keys)) if ops.name == "native" else cache


def empty(shape, dtype):
    """A cache of these pages, filled with anything."""
    scales = (torch.ones(shape[:3]), torch.ones(shape[:3])) if dtype is torch.int8 else (None, None)
    first, second = (random(*shape, seed=seed, scale=9.0) for seed in (1, 2))
    values = pack_values(second) if dtype is NIBBLES else second.to(dtype)
    return KvLayer(first.to(key_type(dtype)), values, *scales)


def attend(ops, q, filled, places, scale=0.125):
    out = torch.empty_like(q)
    rows = rows_at(filled.pages, filled.cache.page_tokens, places)
    cache = stored_by(ops, filled.cache)
    run(ops, lambda: ops.attention(q, cache, rows, scale, out))
    return out


@TYPE
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(3, 3, 64), (9, 3, 64), (8, 1, 32), (16, 2, 128), (2, 1, 8)])
def test_rows_see_their_own_sequence_up_to_their_position(ops, dtype, heads, kv_heads, width):
    filled = paged(LENGTHS, kv_heads, width, PAGE, dtype)
    q = random(len(PLACES), heads, width, seed=9)
    got = attend(ops, q, filled, PLACES)
    assert_close(got, attention_oracle(q, filled, PLACES, 0.125), 4.0, 2e-6)


@PAGED
@pytest.mark.parametrize("page_tokens", [1, 8, 32, 64])
def test_the_page_size_does_not_matter(ops, page_tokens, dtype):
    filled = paged(LENGTHS, 2, 32, page_tokens, dtype)
    q = random(len(PLACES), 4, 32, seed=9)
    assert_close(attend(ops, q, filled, PLACES), attention_oracle(q, filled, PLACES, 0.125), 4.0, 2e-6)


def test_a_long_sequence_is_summed_accurately(ops):
    filled = paged([3000], 1, 64, 32, torch.float16)
    places = [(0, 2999), (0, 1500), (0, 2047)]
    q = random(3, 3, 64, seed=9)
    assert_close(attend(ops, q, filled, places), attention_oracle(q, filled, places, 0.125), 1.0, 2e-6)


def test_sharp_scores_pick_one_value(ops):
    filled = paged([40], 1, 64, 16, torch.float32)
    q = (filled.keys[0][23, 0] * 50).float().reshape(1, 1, 64)
    got = attend(ops, q, filled, [(0, 39)], scale=1.0)
    assert_close(got[0, 0], filled.values[0][23, 0], 1.0, 1e-6)


@TYPE
def test_a_row_does_not_depend_on_the_others(ops, dtype):
    filled = paged(LENGTHS, 3, 64, PAGE, dtype)
    few = 16 if ops.name == "triton" else 33  # rows of a GPU's prompts are multiplied in f16
    places = (PLACES * 3)[:few]
    q = random(few, 9, 64, seed=9)
    whole = attend(ops, q, filled, places)
    for start, count in [(n, 1) for n in range(12)] + [(few - 1, 1), (4, 8)]:
        part = slice(start, start + count)
        assert torch.equal(attend(ops, q[part].clone(), filled, places[part]), whole[part])


@PAGED
@pytest.mark.parametrize(("heads", "width"), [(1, 80), (2, 33), (5, 20), (7, 256), (9, 64)])
def test_a_long_chunk_is_right_and_like_its_rows_alone(ops, heads, width, dtype):
    filled = paged([300], 1, width, 32, dtype)
    places = [(0, position) for position in range(120, 161)]  # on both sides of a split's end
    q = random(len(places), heads, width, seed=9)
    whole = attend(ops, q, filled, places)
    if ops.name == "triton":  # rows of a GPU's prompts are multiplied in f16
        assert_close(whole, attention_oracle(q, filled, places, 0.125), 4.0, 1e-3)
        return
    assert_close(whole, attention_oracle(q, filled, places, 0.125), 4.0, 2e-6)
    for start, count in [(0, 1), (7, 1), (8, 1), (9, 17), (40, 1)]:
        part = slice(start, start + count)
        assert torch.equal(attend(ops, q[part].clone(), filled, places[part]), whole[part])


def test_where_the_pages_lie_does_not_matter(ops):
    q = random(2, 9, 64, seed=9)
    first, second = (attend(ops, q, paged([70], 3, 64, PAGE, torch.float16), [(0, 69), (0, 20)]) for _ in range(2))
    filled = paged([70], 3, 64, PAGE, torch.float16)
    cache = stored_by(ops, filled.cache)
    flipped = replace(cache, keys=cache.keys.flip(0).contiguous(), values=cache.values.flip(0).contiguous())
    pages = (filled.cache.keys.shape[0] - 1 - filled.pages).int()
    out = torch.empty_like(q)
    rows = rows_at(pages, PAGE, [(0, 69), (0, 20)])
    run(ops, lambda: ops.attention(q, flipped, rows, 0.125, out))
    assert torch.equal(first, second)
    assert torch.equal(first, out)


def test_the_thread_count_does_not_matter(threaded_maker):
    filled = paged([400, 3], 3, 64, 32, torch.float16)
    q = random(3, 9, 64, seed=9)
    first, *rest = [
        attend(threaded_maker.make(threads), q, filled, [(0, 399), (1, 2), (0, 5)]) for threads in (1, 2, 3)
    ]
    assert all(torch.equal(first, other) for other in rest)


@TYPE
@pytest.mark.parametrize(("kv_heads", "width"), [(1, 64), (3, 64), (2, 33)])
def test_stored_rows_are_converted_and_nothing_else_changes(ops, dtype, kv_heads, width):
    shape = (5, kv_heads, 16, width)
    before = empty(shape, dtype)
    cache = stored_by(ops, empty(shape, dtype))
    pages = torch.tensor([[3, 1, 4]], dtype=torch.int32)
    positions = [0, 15, 16, 31, 40]
    rows = rows_at(pages, 16, [(0, position) for position in positions])
    k, v = random(5, kv_heads, width, seed=3, scale=7.0), random(5, kv_heads, width, seed=4)
    run(ops, lambda: ops.kv_store(k, v, cache, rows))
    for n, position in enumerate(positions):
        page, offset = pages[0, position // 16], position % 16
        if dtype is torch.int8:
            before.keys[page, :, offset], before.key_scales[page, :, offset] = quantise(k[n])
            before.values[page, :, offset], before.value_scales[page, :, offset] = quantise(v[n])
        else:
            before.keys[page, :, offset] = k[n].to(key_type(dtype))
            before.values[page, :, offset] = pack_values(v[n]) if dtype is NIBBLES else v[n].to(dtype)
    assert torch.equal(key_rows(cache.keys) if ops.name == "native" else cache.keys, before.keys)
    assert torch.equal(cache.values, before.values)
    if dtype is torch.int8:
        assert torch.equal(cache.key_scales, before.key_scales)
        assert torch.equal(cache.value_scales, before.value_scales)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_stays_so_in_bytes(ops, bad):
    cache = stored_by(ops, empty((1, 1, 16, 40), torch.int8))
    k, v, q = random(3, 1, 40, seed=3), random(3, 1, 40, seed=4), random(3, 1, 40, seed=5)
    k[1, 0, 33] = v[2, 0, 7] = bad
    rows, out = rows_at(torch.zeros(1, 1, dtype=torch.int32), 16, [(0, 0), (0, 1), (0, 2)]), torch.empty_like(q)
    run(ops, lambda: ops.kv_store(k, v, cache, rows), lambda: ops.attention(q, cache, rows, 0.2, out))
    assert out[0].isfinite().all()
    assert out[1:].isnan().any(-1).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_stays_so_in_blocks(ops, bad):
    cache = stored_by(ops, empty((1, 1, 16, 40), NIBBLES))
    k, v, q = random(2, 1, 40, seed=3), random(2, 1, 40, seed=4), random(2, 1, 40, seed=5)
    v[1, 0, 33] = bad
    rows, out = rows_at(torch.zeros(1, 1, dtype=torch.int32), 16, [(0, 0), (0, 1)]), torch.empty_like(q)
    run(ops, lambda: ops.kv_store(k, v, cache, rows), lambda: ops.attention(q, cache, rows, 0.2, out))
    assert out[1, 0, 32:].isnan().all()
    assert out[1, 0, :32].isfinite().all()


def test_blocks_of_values_are_those_of_the_storage_type():
    """Q4_1 of `reference/quant`, which the gguf package confirms, decodes them; the error is half a step."""
    x = torch.cat([random(6, 64, scale=3.0), torch.full((1, 64), 2.5), torch.zeros(1, 64)])
    stored = pack_values(x)
    assert torch.equal(unpack("Q4_1", stored), unpack_values(stored, 64))
    blocks = x.reshape(8, 2, 32)
    step = (blocks.amax(-1) - blocks.amin(-1)) / 15
    limit = 0.5 * step + 2**-10 * blocks.abs().amax(-1)  # 16 codes reach the top within f16's rounding of both numbers
    off = (unpack_values(stored, 64) - x).abs().reshape(8, 2, 32).amax(-1)
    assert (off <= limit).all()
    assert torch.equal(unpack_values(stored, 64)[6:], x[6:])


def test_rows_of_zeros_and_of_nearly_nothing_become_zeros(ops):
    cache = stored_by(ops, empty((1, 1, 16, 32), torch.int8))
    rows = rows_at(torch.zeros(1, 1, dtype=torch.int32), 16, [(0, 0), (0, 1), (0, 2)])
    k = torch.stack([torch.zeros(1, 32), torch.full((1, 32), 1e-38), torch.full((1, 32), 3e38)])
    run(ops, lambda: ops.kv_store(k, -k, cache, rows))
    keys = key_rows(cache.keys) if ops.name == "native" else cache.keys
    assert keys[0, 0, :3, 0].tolist() == [0, 0, 127]
    assert cache.values[0, 0, :3, 31].tolist() == [0, 0, -127]
    assert cache.key_scales[0, 0, 0] == 0
    assert torch.isfinite(cache.value_scales[0, 0, :3]).all()


MIXED = [(torch.float16, torch.int8), (torch.int8, torch.float16), (torch.int8, NIBBLES)]


@pytest.mark.parametrize(("of_keys", "of_values"), MIXED, ids=["f16-int8", "int8-f16", "int8-q4"])
def test_keys_and_values_may_differ_in_type(ops, of_keys, of_values):
    by_type = {dtype: paged(LENGTHS, 2, 20, PAGE, dtype) for dtype in (of_keys, of_values)}
    keys, values = by_type[of_keys], by_type[of_values]
    cache = KvLayer(keys.cache.keys, values.cache.values, keys.cache.key_scales, values.cache.value_scales)
    mixed = Paged(cache, keys.pages, keys.keys, values.values)
    q = random(len(PLACES), 6, 20, seed=9)
    assert_close(attend(ops, q, mixed, PLACES), attention_oracle(q, mixed, PLACES, 0.125), 4.0, 2e-6)


def test_scales_without_bytes_are_refused(ops):
    if ops.name == "reference":
        pytest.skip("the reference checks no types")
    cache = KvLayer(torch.zeros(1, 1, 16, 32), torch.zeros(1, 1, 16, 32), torch.zeros(1, 1, 16))
    k, rows = torch.zeros(1, 1, 32), rows_at(torch.zeros(1, 1, dtype=torch.int32), 16, [(0, 0)])
    with pytest.raises(ValueError, match="have scales"):
        ops.kv_store(k, k, cache, rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
def test_conversion_rounds_to_nearest_even_through_all_magnitudes(ops, dtype):
    values = torch.tensor(
        [1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 6e-8, 3e-8, 1e-7, 5.96e-8, 65519.0, -0.0]
    )
    values = torch.cat([values, random(86, scale=1e-5)]).reshape(1, 1, 96)
    cache = KvLayer(torch.zeros(1, 1, 1, 96, dtype=dtype), torch.zeros(1, 1, 1, 96, dtype=dtype))
    rows = rows_at(torch.zeros(1, 1, dtype=torch.int32), 1, [(0, 0)])
    run(ops, lambda: ops.kv_store(values, -values, cache, rows))
    assert torch.equal(cache.keys.view(torch.int16).flatten(), values.to(dtype).view(torch.int16).flatten())
    assert torch.equal(cache.values.view(torch.int16).flatten(), (-values).to(dtype).view(torch.int16).flatten())


@TYPE
def test_a_row_attends_to_what_its_own_step_stored(ops, dtype):
    filled = paged([20], 1, 32, 16, dtype)
    rows, places = rows_at(filled.pages, 16, [(0, 18), (0, 19)]), [(0, 18), (0, 19)]
    k, v, q = random(2, 1, 32, seed=5), random(2, 1, 32, seed=6), random(2, 2, 32, seed=7)
    filled.keys[0][18:20], filled.values[0][18:20] = seen_in_cache(k, key_type(dtype)), seen_in_cache(v, dtype)
    out, cache = torch.empty_like(q), stored_by(ops, filled.cache)
    run(
        ops,
        lambda: ops.kv_store(k, v, cache, rows),
        lambda: ops.attention(q, cache, rows, 0.2, out),
    )
    assert_close(out, attention_oracle(q, filled, places, 0.2), 4.0, 2e-6)


@pytest.mark.parametrize("page_tokens", [8, 16, 48])
def test_keys_go_into_blocks_and_come_back(page_tokens):
    keys = random(3, 2, page_tokens, 20)
    blocked = block_keys(keys)
    assert torch.equal(key_rows(blocked), keys)
    assert torch.equal(blocked, keys) == (page_tokens == 8)
    if page_tokens == 48:  # token 17, element 5 of page 1, head 0
        assert blocked[1, 0].flatten()[16 * 20 + 5 * 16 + 1] == keys[1, 0, 17, 5]
