"""embed and gather: rows picked by number, exact."""

from __future__ import annotations

import pytest
import torch

from tests.support.op_cases import ALL_TYPES, SUPER_TYPES, assert_close, make_weight, random, run, values_of


@pytest.mark.parametrize("type_name", ALL_TYPES)
@pytest.mark.parametrize("count", [1, 8, 33])
def test_embedded_rows_are_the_decoded_rows(ops, type_name, count):
    table = make_weight(type_name, 70, 512 if type_name in SUPER_TYPES else 96)
    ids = torch.arange(count, dtype=torch.int32) * 7 % 70
    out = torch.empty(count, table.cols)
    run(ops, lambda: ops.embed(ids, table, out))
    wanted = values_of(table)[ids.long()]
    # K formats round scale * code differently where a multiply-add is fused
    assert_close(out, wanted, wanted.abs().amax(1, keepdim=True), 1e-6)


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_values_with_one_rounding_are_exact(ops, type_name):
    table = make_weight(type_name, 40, 64)
    ids = torch.tensor([39, 0, 17], dtype=torch.int32)
    out = torch.empty(3, 64)
    run(ops, lambda: ops.embed(ids, table, out))
    assert torch.equal(out, values_of(table)[ids.long()].float())


@pytest.mark.parametrize("type_name", ["Q4_1", "Q5_K"])
def test_a_row_does_not_depend_on_its_place(ops, type_name):
    table = make_weight(type_name, 40, 256)
    ids = torch.arange(33, dtype=torch.int32)
    whole, one = torch.empty(33, 256), torch.empty(1, 256)
    run(ops, lambda: ops.embed(ids, table, whole))
    for row in (0, 8, 32):
        chosen = ids[row : row + 1].clone()
        run(ops, lambda chosen=chosen: ops.embed(chosen, table, one))
        assert torch.equal(one[0], whole[row])


@pytest.mark.parametrize("width", [1, 33, 576])
def test_gathered_rows_are_copies(ops, width):
    x, index = random(20, width), torch.tensor([19, 0, 0, 7], dtype=torch.int32)
    out = torch.empty(4, width)
    run(ops, lambda: ops.gather(x, index, out))
    assert torch.equal(out, x[[19, 0, 0, 7]])


def test_gathered_integers_are_copies(ops):
    x = torch.tensor([[7], [2**31 - 1], [-5]], dtype=torch.int32)
    index, out = torch.tensor([2, 1, 1], dtype=torch.int32), torch.empty(3, 1, dtype=torch.int32)
    run(ops, lambda: ops.gather(x, index, out))
    assert torch.equal(out, x[[2, 1, 1]])
