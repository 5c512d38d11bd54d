"""Numbers in buffers that point outside raise IndexError when the step runs; nothing outside is read or written."""

from __future__ import annotations

import pytest
import torch

from strata_kernels.ops import KvLayer, Rows
from tests.support.op_cases import make_weight, random, run


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def small_cache() -> KvLayer:
    return KvLayer(torch.zeros(3, 1, 4, 8), torch.zeros(3, 1, 4, 8))


@pytest.mark.parametrize("bad", [-1, 10, 2**31 - 1, -(2**31)])
def test_an_id_outside_the_table(ops, bad):
    table, out = make_weight("Q8_0", 10, 32), torch.empty(2, 32)
    with pytest.raises(IndexError, match="embed"):
        run(ops, lambda: ops.embed(ints(3, bad), table, out))


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1])
def test_an_index_outside_the_rows(ops, bad):
    x, out = random(4, 8), torch.empty(1, 8)
    with pytest.raises(IndexError, match="gather"):
        run(ops, lambda: ops.gather(x, ints(bad), out))


@pytest.mark.parametrize("bad", [-1, 12, 2**31 - 1])
def test_a_slot_outside_the_cache(ops, bad):
    cache = small_cache()
    rows = Rows(ints(0, 1), ints(0, 0), ints(bad, bad), ints(0).reshape(1, 1))
    k = torch.ones(2, 1, 8)
    with pytest.raises(IndexError, match="kv_store"):
        run(ops, lambda: ops.kv_store(k, k, cache, rows))
    assert not cache.keys.any()
    assert not cache.values.any()


@pytest.mark.parametrize(
    ("position", "sequence", "page"),
    [(-1, 0, 0), (8, 0, 0), (2**31 - 1, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, -1), (0, 0, 3), (5, 0, 99)],
)
def test_a_row_outside_the_cache(ops, position, sequence, page):
    rows = Rows(ints(position), ints(sequence), ints(0), ints(page, page).reshape(1, 2))
    q, out, cache = random(1, 2, 8), torch.empty(1, 2, 8), small_cache()
    with pytest.raises(IndexError, match="attention"):
        run(ops, lambda: ops.attention(q, cache, rows, 1.0, out))


def test_the_next_step_after_a_fault_works(ops):
    x, out = random(4, 8), torch.empty(1, 8)
    with pytest.raises(IndexError):
        run(ops, lambda: ops.gather(x, ints(9), out))
    run(ops, lambda: ops.gather(x, ints(2), out))
    assert torch.equal(out[0], x[2])
