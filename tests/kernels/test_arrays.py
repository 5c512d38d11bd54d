"""Numpy arrays and torch tensors over the same numbers are the same to every maker; u16 in numpy is bf16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from strata_kernels.arrays import type_name
from strata_kernels.ops import KvLayer, Ops, Rows
from tests.support.op_cases import KV_TYPES, random, run


def as_numpy(tensor: torch.Tensor) -> Any:
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@pytest.mark.parametrize("dtype", KV_TYPES[:3], ids=str)
def test_a_cache_of_arrays_holds_the_bits_of_a_cache_of_tensors(ops: Ops, dtype):
    k, v, q = random(3, 2, 32, seed=1), random(3, 2, 32, seed=2), random(3, 4, 32, seed=3)
    numbers = torch.arange(3, dtype=torch.int32)
    where = (numbers, torch.zeros(3, dtype=torch.int32), numbers, torch.zeros(1, 1, dtype=torch.int32))
    results = []
    for convert in (lambda tensor: tensor, as_numpy):
        keys, values = torch.zeros(1, 2, 16, 32, dtype=dtype), torch.zeros(1, 2, 16, 32, dtype=dtype)
        out, cache, rows = torch.zeros(3, 4, 32), KvLayer(convert(keys), convert(values)), Rows(*map(convert, where))
        run(
            ops,
            lambda cache=cache, rows=rows, c=convert: ops.kv_store(c(k), c(v), cache, rows),
            lambda cache=cache, rows=rows, c=convert, out=out: ops.attention(c(q), cache, rows, 0.2, c(out)),
        )
        results.append((keys, values, out))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert results[0][2].any()


def test_what_ops_make_is_zero_in_one_piece_and_shared_with_the_host(ops: Ops):
    for name, dtype in (("f32", np.float32), ("f16", np.float16), ("bf16", np.uint16), ("i32", np.int32)):
        made = ops.zeros(3, 5, dtype=name)
        host = ops.host(made)
        assert host.shape == (3, 5) and host.dtype == dtype and not host.any() and type_name(made) == name
        host[1, 2] = 7
        assert made[1, 2] == 7


def test_constants_are_not_copied_unless_they_have_gaps(ops: Ops):
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    values.setflags(write=False)
    assert ops.constant(values) is values
    columns = ops.constant(values[:, ::2])
    assert np.array_equal(columns, [[0, 2], [4, 6], [8, 10]])
    out = np.zeros((3, 2), np.float32)
    run(ops, lambda: ops.add(columns, columns, out))
    assert np.array_equal(out, 2 * columns)
