"""Packing for GPUs, and the products of every layout in Triton's interpreter: little of each, as that is slow.

The shared tests of linear and embed run on the same kernels with many shapes by `make test-all`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from strata_kernels.gpu.arrays import HostAllocator
from strata_kernels.gpu.cells import CELLS, packed_bytes, sections
from strata_kernels.gpu.codes import TAKERS
from strata_kernels.gpu.packing import gain_of, pack, pack_pieces, views
from strata_kernels.ops import Ops, Weight
from strata_kernels.registry import weight_types
from tests.support.op_cases import (
    ALL_TYPES,
    BLOCK,
    assert_close,
    linear,
    make_weight,
    product_share,
    random,
    run,
    values_of,
)
from tests.support.op_makers import triton_maker

# one of each way: halves of nibbles, two least values, odd groups, all planes, codebooks and curves, zeros, floats
LAYOUTS = ("F32", "BF16", "Q8_0", "Q4_1", "Q4_K", "Q6_K", "Q3_K", "IQ3_S", "I4_128")


@pytest.fixture(scope="module")
def gpu() -> Ops:
    maker = triton_maker()
    if maker.absent:
        pytest.skip(maker.absent)
    return maker.make(1)


def test_every_type_that_the_cpu_multiplies_can_be_packed():
    assert weight_types("triton") == weight_types("native")


@pytest.mark.parametrize("type_name", CELLS)
def test_codes_lie_where_the_cells_say(type_name):
    """Every bit of a code, found by the rule of gpu/cells.py alone: with value 1 for a bit it is the code itself."""
    cells, cols = CELLS[type_name], 2 * max(BLOCK[type_name], 32)
    weight = make_weight(type_name, 3, cols)
    wanted = TAKERS[type_name](weight.data.numpy().reshape(-1, cells.file[1])).codes.reshape(3, cols)
    found = {name: view.numpy() for name, view in views(pack(weight, HostAllocator())).items()}
    for k in range(cols):
        g, i, j = k // 32, k % 32 // 4, k % 4
        code = np.zeros(3, np.int64)
        if cells.bits == 8:
            code = found["words"][:, g, i // 4 * 4 + j].astype(np.int64) >> (8 * (i % 4)) & 255
        elif cells.bits >= 4:
            code = found["words"][:, g, j].astype(np.int64) >> (8 * (i % 4) + 4 * (i // 4)) & 15
        if "pairs" in found:
            code |= (found["pairs"][:, g, j].astype(np.int64) >> (2 * i) & 3) << (4 if cells.bits == 6 else 0)
        if "bits" in found:
            code |= (found["bits"][:, g, j].astype(np.int64) >> i & 1) << (cells.bits - 1)
        assert (code == wanted[:, k]).all(), k


@pytest.mark.parametrize("type_name", ALL_TYPES)
def test_pieces_make_the_same_bytes_as_the_whole(type_name):
    weight = make_weight(type_name, 7, 2 * BLOCK[type_name])
    whole = pack(weight, HostAllocator())
    rows = weight.data.numpy()
    pieces = pack_pieces(type_name, 7, weight.cols, (rows[:3], rows[3:4], rows[4:]), HostAllocator())
    for name, view in views(whole).items():
        assert (view.numpy().view(np.uint8) == views(pieces)[name].numpy().view(np.uint8)).all(), name
    assert whole.data.nbytes == packed_bytes(type_name, 7, weight.cols)
    _, nbytes = sections(type_name, 7, weight.cols)
    assert nbytes % 16 == 0


@pytest.mark.parametrize("type_name", ALL_TYPES)
def test_the_gain_brings_every_value_into_the_range_of_f16(type_name):
    weight = make_weight(type_name, 5, 2 * BLOCK[type_name])
    gain, back, *_ = views(pack(weight, HostAllocator()))["gain"].numpy()
    assert gain * back == 1
    assert values_of(weight).abs().max() * gain < 2**15


@pytest.mark.parametrize("largest", [0.0, float("inf"), 1e-300, 1e300, 3.0])
def test_the_gain_is_a_power_of_two_that_f32_holds(largest):
    gain, back, *_ = gain_of(largest)
    assert gain * back == 1
    assert np.frexp(gain)[0] == 0.5


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        (Weight("Q9", 1, 32, torch.zeros(1, 32, dtype=torch.uint8)), "weight type Q9 is not one of F32"),
        (Weight("Q4_K", 1, 64, torch.zeros(1, 36, dtype=torch.uint8)), "64 columns are not whole blocks of 256"),
        (Weight("Q8_0", 2, 32, torch.zeros(1, 34, dtype=torch.uint8)), "Q8_0 2 x 32 is 68 bytes, not 34"),
    ],
)
def test_what_does_not_fit_is_refused(weight, text):
    with pytest.raises(ValueError, match=text):
        pack(weight, HostAllocator())


@pytest.mark.parametrize("pieces", [(2,), (2, 2)])
def test_a_wrong_number_of_rows_is_refused(pieces):
    rows = make_weight("Q8_0", 4, 32).data.numpy()
    with pytest.raises(ValueError, match="rows"):
        pack_pieces("Q8_0", 3, 32, (rows[:count] for count in pieces), HostAllocator())


@pytest.mark.parametrize("type_name", ALL_TYPES)
def test_a_row_of_a_table_is_what_is_stored(gpu, type_name):
    table = make_weight(type_name, 6, max(BLOCK[type_name], 32))
    ids, out = torch.tensor([5, 0, 6], dtype=torch.int32), torch.empty(3, table.cols)
    run(gpu, lambda: gpu.embed(ids, table, out))
    wanted = values_of(table)[[5, 0]]
    assert_close(out[:2], wanted, wanted.abs().amax(1, keepdim=True), 1e-6)
    assert out[2].isnan().all()  # there is no row 6


@pytest.mark.parametrize("type_name", LAYOUTS)
def test_products_of_few_rows_do_not_depend_on_how_many(gpu, type_name):
    weight = make_weight(type_name, 3, 256)
    packed, x, bias = gpu.pack(weight), random(5, 256, seed=1), random(3, seed=2)
    whole = linear(gpu, x, packed, bias)
    exact = x.double() @ values_of(weight).T + bias
    assert_close(whole, exact, x.double().abs() @ values_of(weight).abs().T + bias.abs(), product_share(gpu, weight, 5))
    for first, last in ((4, 5), (1, 3)):
        assert torch.equal(linear(gpu, x[first:last].clone(), packed, bias), whole[first:last])


@pytest.mark.parametrize("type_name", LAYOUTS)
def test_products_of_many_rows_are_near(gpu, type_name):
    weight = make_weight(type_name, 3, 256)
    x, out = random(17, 256, seed=3) * 1e5, random(17, 3, seed=4)
    x[1] *= 1e-30
    before, packed = out.clone(), gpu.pack(weight)
    run(gpu, lambda: gpu.linear(x, [packed], [out], add=True))
    exact = x.double() @ values_of(weight).T + before
    size = x.double().abs() @ values_of(weight).abs().T + before.abs()
    assert_close(out, exact, size, product_share(gpu, weight, 17))


def test_columns_in_another_order(gpu):
    weight = make_weight("I4_32", 3, 64)
    order = np.random.default_rng(0).permutation(64).astype(np.int32)
    x = random(2, 64, seed=5)
    got = linear(gpu, x, replace(gpu.pack(weight), order=torch.from_numpy(order)))
    assert torch.equal(got, linear(gpu, x[:, order.astype(np.int64)].contiguous(), gpu.pack(weight)))


@pytest.mark.parametrize(("type_name", "scale_at"), [("Q4_0", 0), ("Q8_0", 0), ("Q4_K", 0)])
def test_zero_scales_give_zeros(gpu, type_name, scale_at):
    weight = make_weight(type_name, 2, 256)
    data = weight.data.reshape(-1, CELLS[type_name].file[1])
    data[:, scale_at : scale_at + (4 if type_name == "Q4_K" else 2)] = 0
    assert torch.equal(linear(gpu, random(2, 256), gpu.pack(weight)), torch.zeros(2, 2))
