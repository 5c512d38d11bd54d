"""Steps: recording runs nothing, a replay reads what buffers hold then, workspace has fixed addresses."""

from __future__ import annotations

import pytest
import torch

from strata_kernels.arrays import address
from strata_kernels.ops import KvLayer, Ops, Rotary, Rows
from tests.support.op_cases import linear, make_weight, random, run

ROTARY = Rotary(10000.0 ** -(torch.arange(8, dtype=torch.float32) / 8), adjacent=True)


def test_recording_alone_changes_nothing(ops):
    a, b, out = torch.ones(2, 8), torch.ones(2, 8), torch.zeros(2, 8)
    ops.begin()
    ops.add(a, b, out)
    step = ops.end()
    assert torch.equal(out, torch.zeros(2, 8))
    step.run()
    assert torch.equal(out, torch.full((2, 8), 2.0))


def test_a_replay_reads_the_current_contents(ops):
    packed = ops.pack(make_weight("Q8_0", 20, 64))
    x, out = random(3, 64), torch.empty(3, 20)
    ops.begin()
    ops.linear(x, [packed], [out])
    step = ops.end()
    for seed in range(3):
        x.copy_(random(3, 64, seed=seed))
        step.run()
        assert torch.equal(out, linear(ops, random(3, 64, seed=seed), packed))


def test_ops_of_a_step_run_in_order(ops):
    a, b, c = torch.full((1, 8), 1.0), torch.full((1, 8), 2.0), torch.empty(1, 8)
    ops.begin()
    ops.add(a, b, c)
    ops.add(c, c, c)
    ops.add(c, a, b)
    step = ops.end()
    step.run()
    assert b[0, 0] == 7
    step.run()  # b is an input too: 1 + 7 doubled, plus 1
    assert b[0, 0] == 17


def test_steps_recorded_one_after_another_are_independent(ops):
    a, out = torch.ones(1, 8), [torch.zeros(1, 8) for _ in range(2)]
    steps = []
    for target in out:
        ops.begin()
        ops.add(a, a, target)
        steps.append(ops.end())
    steps[1].run()
    assert torch.equal(out[0], torch.zeros(1, 8))
    assert torch.equal(out[1], torch.full((1, 8), 2.0))


def test_workspace_is_given_back_and_taken_again_at_the_same_address(ops):
    addresses = []
    for _ in range(3):
        with ops.scope():
            addresses.append([address(ops.take(4, 100)), address(ops.take(7, dtype="i32"))])
    assert addresses[0] == addresses[1] == addresses[2]


def test_workspace_of_one_scope_does_not_overlap(ops):
    with ops.scope():
        taken = [ops.take(5, 33), ops.take(3), ops.take(600, 1000), ops.take(1, dtype="i32"), ops.take(2, 2, 2)]
        for number, array in enumerate(taken):
            array[:] = number
        with ops.scope():
            ops.take(100, 100)[:] = -1
        assert all((array == number).all() for number, array in enumerate(taken))
        assert [array.shape for array in taken] == [(5, 33), (3,), (600, 1000), (1,), (2, 2, 2)]
        assert all(array.flags.c_contiguous for array in taken)


def layer(ops: Ops, x: torch.Tensor, rows: Rows, cache: KvLayer, weights: list) -> torch.Tensor:
    """A small attention layer with a residual, all intermediate tensors from the workspace."""
    count, (norm, qkv, output, up, down) = x.shape[0], weights
    with ops.scope():
        h = ops.take(count, 64)
        ops.rms_norm(x, norm, 1e-5, h)
        q, k, v = ops.take(count, 64), ops.take(count, 32), ops.take(count, 32)
        ops.linear(h, qkv, [q, k, v])
        ops.rope(q.reshape(count, 4, 16), rows, ROTARY)
        ops.rope(k.reshape(count, 2, 16), rows, ROTARY)
        ops.kv_store(k.reshape(count, 2, 16), v.reshape(count, 2, 16), cache, rows)
        a = ops.take(count, 64)
        ops.attention(q.reshape(count, 4, 16), cache, rows, 0.25, a.reshape(count, 4, 16))
        ops.linear(a, [output], [x], add=True)
        gate, upper = ops.take(count, 96), ops.take(count, 96)
        ops.linear(x, up, [gate, upper])
        ops.silu_mul(gate, upper, gate)
        ops.linear(gate, [down], [x], add=True)
    return x


def weights_of(ops: Ops, type_name: str) -> list:
    def pack(rows, cols, seed):
        return ops.pack(make_weight(type_name, rows, cols, seed))

    norm = random(64, seed=20)
    return [
        norm,
        [pack(64, 64, 1), pack(32, 64, 2), pack(32, 64, 3)],
        pack(64, 64, 4),
        [pack(96, 64, 5), pack(96, 64, 6)],
    ] + [pack(64, 96, 7)]


def run_layer(ops: Ops, weights: list, x: torch.Tensor, chunks: list[int]) -> torch.Tensor:
    """Feed the tokens of one sequence in chunks of these sizes; all outputs."""
    cache = KvLayer(torch.zeros(4, 2, 8, 16, dtype=torch.float16), torch.zeros(4, 2, 8, 16, dtype=torch.float16))
    pages = torch.tensor([[2, 0, 3, 1]], dtype=torch.int32)
    outs, start = [], 0
    for size in chunks:
        positions = torch.arange(start, start + size, dtype=torch.int32)
        slots = pages[0, (positions // 8).long()] * 8 + positions % 8
        rows = Rows(positions, torch.zeros(size, dtype=torch.int32), slots, pages)
        part = x[start : start + size].clone()
        run(ops, lambda part=part, rows=rows: layer(ops, part, rows, cache, weights))
        outs.append(part)
        start += size
    return torch.cat(outs)


@pytest.mark.parametrize("type_name", ["F32", "Q8_0", "Q4_1"])
def test_a_layer_gives_the_same_bits_in_one_chunk_in_several_and_token_by_token(ops, type_name):
    x, weights = random(31, 64, seed=30), weights_of(ops, type_name)
    whole = run_layer(ops, weights, x, [31])
    assert torch.isfinite(whole).all()
    assert torch.equal(run_layer(ops, weights, x, [8, 8, 8, 7]), whole)
    assert torch.equal(run_layer(ops, weights, x, [1] * 31), whole)
    assert torch.equal(run_layer(ops, weights, x, [17, 1, 1, 12]), whole)


def test_the_makers_agree_on_a_layer(ops, reference):
    x = random(31, 64, seed=30)
    got = run_layer(ops, weights_of(ops, "F32"), x, [31])
    wanted = run_layer(reference, weights_of(reference, "F32"), x, [31])
    # a key or value may fall on the other side of an f16 rounding
    assert (got - wanted).abs().max() <= 2e-3 * wanted.abs().max()
    assert (got - wanted).norm() <= 2e-4 * wanted.norm()


def test_a_recorded_layer_replays_for_new_tokens_and_positions(ops):
    weights, cache_shape = weights_of(ops, "Q8_0"), (4, 2, 8, 16)
    tokens = random(20, 64, seed=31)
    wanted = run_layer(ops, weights, tokens, [1] * 20)
    cache = KvLayer(torch.zeros(cache_shape, dtype=torch.float16), torch.zeros(cache_shape, dtype=torch.float16))
    pages = torch.tensor([[1, 2, 0, 3]], dtype=torch.int32)
    buffers = [torch.zeros(1, dtype=torch.int32) for _ in range(3)]
    rows, x = Rows(buffers[0], buffers[1], buffers[2], pages), torch.zeros(1, 64)
    ops.begin()
    layer(ops, x, rows, cache, weights)
    step = ops.end()
    for position in range(20):
        x.copy_(tokens[position : position + 1])
        rows.positions.fill_(position)
        rows.slots.fill_(int(pages[0, position // 8]) * 8 + position % 8)
        step.run()
        assert torch.equal(x[0], wanted[position])
