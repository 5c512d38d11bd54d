"""Recorded native steps: replay, fixed addresses, sharing of quantised inputs, refusals."""

from __future__ import annotations

import pytest
import torch

from strata_kernels.arrays import address
from strata_kernels.native import NativeOps
from strata_kernels.ops import KvLayer, Rotary, Rows, Weight


@pytest.fixture
def ops() -> NativeOps:
    return NativeOps(2)


def _q8(rows: int, cols: int, seed: int = 0) -> Weight:
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, (rows, cols // 32, 34), dtype=torch.uint8, generator=generator)
    data[:, :, 1] = 0x24  # the f16 scale's exponent: small and positive
    return Weight("Q8_0", rows, cols, data.reshape(rows, -1).contiguous())


def _int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_a_recorded_step_runs_only_when_told_and_reads_the_buffers_of_that_moment(ops):
    a, b, out = torch.ones(4), torch.ones(4), torch.zeros(4)
    ops.begin()
    ops.add(a, b, out)
    step = ops.end()
    assert out.eq(0).all()
    step.run()
    assert out.eq(2).all()
    a.fill_(5)
    step.run()
    assert out.eq(6).all()


def test_a_step_keeps_its_tensors_alive(ops):
    out = torch.zeros(1 << 16)
    ops.begin()
    ops.add(torch.ones(1 << 16), torch.ones(1 << 16), out)
    step = ops.end()
    for _ in range(4):
        torch.full((1 << 16,), 7.0)  # would reuse freed addresses
    step.run()
    assert out.eq(2).all()


def test_a_step_outlives_its_ops():
    ops = NativeOps(2)
    out = torch.zeros(8)
    ops.begin()
    ops.add(torch.ones(8), torch.ones(8), out)
    step = ops.end()
    del ops
    step.run()
    assert out.eq(2).all()


def test_two_products_of_the_same_input_quantise_it_once(ops):
    x, first, second = torch.randn(3, 64), torch.empty(3, 32), torch.empty(3, 32)
    ops.begin()
    ops.linear(x, [_q8(32, 64, 1)], [first])
    ops.linear(x, [_q8(32, 64, 2)], [second])
    assert ops.end().op_count == 3


def test_an_input_written_between_two_products_is_quantised_again(ops):
    weight = _q8(32, 64)
    x, first, second = torch.randn(3, 64), torch.empty(3, 32), torch.empty(3, 32)
    ops.begin()
    ops.linear(x, [weight], [first])
    ops.add(x, x, x)
    ops.linear(x, [weight], [second])
    step = ops.end()
    assert step.op_count == 5
    step.run()
    torch.testing.assert_close(second, 2 * first)


def test_a_row_view_written_between_two_products_counts_as_a_change(ops):
    weight = _q8(32, 64)
    x, first, second = torch.randn(3, 64), torch.empty(3, 32), torch.empty(3, 32)
    ops.begin()
    ops.linear(x, [weight], [first])
    ops.add(x[1:2], x[1:2], x[1:2])
    ops.linear(x, [weight], [second])
    ops.end().run()
    torch.testing.assert_close(second[1], 2 * first[1])
    assert torch.equal(second[0], first[0])


def test_more_matrices_than_one_op_holds_are_all_multiplied(ops):
    x = torch.randn(2, 64)
    weights = [_q8(16 + i, 64, i) for i in range(6)]
    outs = [torch.empty(2, weight.rows) for weight in weights]
    ops.linear(x, weights, outs)
    for weight, out in zip(weights, outs, strict=True):
        alone = torch.empty_like(out)
        ops.linear(x, [weight], [alone])
        assert torch.equal(out, alone)


def test_layers_share_one_rotation_table(ops):
    rows = Rows(_int32(0, 1), _int32(0, 0), _int32(0, 1), torch.zeros(1, 1, dtype=torch.int32))
    rotary = Rotary(torch.tensor([1.0, 0.1]))
    q, k = torch.randn(2, 2, 4), torch.randn(2, 1, 4)
    ops.begin()
    ops.rope(q, rows, rotary)
    ops.rope(k, rows, rotary)
    assert ops.end().op_count == 3


def test_recording_twice_or_ending_without_a_beginning_is_refused(ops):
    with pytest.raises(RuntimeError, match="no step"):
        ops.end()
    ops.begin()
    with pytest.raises(RuntimeError, match="already"):
        ops.begin()
    ops.abandon()
    ops.begin()
    ops.end().run()


def test_an_id_outside_the_table_is_an_index_error_at_run_time(ops):
    table, out, ids = _q8(4, 32), torch.empty(1, 32), _int32(0)
    ops.begin()
    ops.embed(ids, table, out)
    step = ops.end()
    step.run()
    for bad in (-1, 4):
        ids[0] = bad
        with pytest.raises(IndexError, match="id lies outside"):
            step.run()
    ids[0] = 3
    step.run()


@pytest.mark.parametrize("slot", [-1, 8])
def test_a_slot_outside_the_cache_is_an_index_error(ops, slot):
    cache = KvLayer(torch.zeros(2, 1, 4, 8), torch.zeros(2, 1, 4, 8))
    rows = Rows(_int32(0), _int32(0), _int32(slot), torch.zeros(1, 2, dtype=torch.int32))
    with pytest.raises(IndexError, match="slot"):
        ops.kv_store(torch.ones(1, 1, 8), torch.ones(1, 1, 8), cache, rows)
    assert cache.keys.eq(0).all()


@pytest.mark.parametrize(
    ("position", "sequence", "page"), [(-1, 0, 0), (8, 0, 0), (0, 1, 0), (0, -1, 0), (5, 0, 2), (5, 0, -1)]
)
def test_attention_outside_the_cache_is_an_index_error(ops, position, sequence, page):
    cache = KvLayer(torch.zeros(2, 1, 4, 8), torch.zeros(2, 1, 4, 8))
    rows = Rows(_int32(position), _int32(sequence), _int32(0), torch.tensor([[0, page]], dtype=torch.int32))
    with pytest.raises(IndexError, match="attention"):
        ops.attention(torch.ones(1, 1, 8), cache, rows, 1.0, torch.empty(1, 1, 8))


def test_an_index_outside_the_rows_is_an_index_error(ops):
    with pytest.raises(IndexError, match="index"):
        ops.gather(torch.ones(2, 4), _int32(2), torch.empty(1, 4))


def test_wrong_kinds_and_shapes_are_refused_with_their_numbers(ops):
    weight = _q8(16, 64)
    with pytest.raises(TypeError, match=r"linear x: f32 is needed, not torch.float16"):
        ops.linear(torch.zeros(1, 64, dtype=torch.float16), [weight], [torch.empty(1, 16)])
    with pytest.raises(ValueError, match="x has 32 columns, the weight 64"):
        ops.linear(torch.zeros(1, 32), [weight], [torch.empty(1, 16)])
    with pytest.raises(ValueError, match=r"linear out: shape \[1, 16\] is needed, not \[1, 15\]"):
        ops.linear(torch.zeros(1, 64), [weight], [torch.empty(1, 15)])
    with pytest.raises(ValueError, match="contiguous"):
        ops.add(torch.zeros(4, 2).t(), torch.zeros(2, 4), torch.empty(2, 4))
    with pytest.raises(ValueError, match="shares memory"):
        x = torch.zeros(4, 64)
        ops.linear(x, [_q8(64, 64)], [x])
    with pytest.raises(ValueError, match="overlaps part"):
        long = torch.zeros(12)
        ops.add(long[:8], long[:8], long[4:])
    with pytest.raises(ValueError, match="no multiple"):
        cache = KvLayer(torch.zeros(1, 2, 4, 8), torch.zeros(1, 2, 4, 8))
        rows = Rows(_int32(0), _int32(0), _int32(0), torch.zeros(1, 1, dtype=torch.int32))
        ops.attention(torch.zeros(1, 3, 8), cache, rows, 1.0, torch.empty(1, 3, 8))


@pytest.mark.parametrize(
    ("weight", "error"),
    [
        (Weight("Q8_1", 1, 32, torch.zeros(1, 36, dtype=torch.uint8)), ValueError),
        (Weight("Q4_K", 1, 32, torch.zeros(1, 18, dtype=torch.uint8)), ValueError),
        (Weight("Q8_0", 2, 32, torch.zeros(1, 34, dtype=torch.uint8)), ValueError),
        (Weight("Q8_0", 1, 32, torch.zeros(1, 34)), TypeError),
        (Weight("Q8_0", 1, 32, torch.zeros(1, 34, dtype=torch.uint8), "other"), ValueError),
    ],
)
def test_a_weight_that_does_not_fit_is_refused(ops, weight, error):
    with pytest.raises(error):
        ops.pack(weight)


def test_a_packed_matrix_is_at_most_five_percent_larger(ops):
    for kind, block, size in (("Q8_0", 32, 34), ("Q4_1", 32, 20), ("Q4_K", 256, 144), ("Q6_K", 256, 210)):
        data = torch.zeros(64, 512 // block * size, dtype=torch.uint8)
        packed = ops.pack(Weight(kind, 64, 512, data))
        assert packed.data.nbytes <= 1.05 * data.nbytes
        assert ops.pack(packed) is packed


def test_workspace_is_given_back_in_stack_order_and_its_blocks_stay(ops):
    with ops.scope():
        first = ops.take(1000)
        with ops.scope():
            inner = ops.take(7, 3, dtype="i32")
            big = ops.take(5 << 20)
        again = ops.take(7, 3, dtype="i32")
        assert address(again) == address(inner) != address(first)
        assert inner.dtype == "int32" and tuple(inner.shape) == (7, 3)
        assert address(big) % 64 == 0
    with ops.scope():
        assert address(ops.take(1000)) == address(first)
