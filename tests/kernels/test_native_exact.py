"""The exact contract of the native builds: a row's bits depend on nothing but the row."""

from __future__ import annotations

import pytest
import torch

from strata_kernels.binding import load
from strata_kernels.native import NativeOps
from strata_kernels.ops import KvLayer, Rows, Weight
from strata_kernels.reference.ops import ReferenceOps

BUILDS = [name for name, refused in load().builds if not refused]
PAGE = 16


@pytest.fixture(params=BUILDS)
def build(request) -> str:
    return request.param


def _weight(kind: str, rows: int, cols: int) -> Weight:
    block, size, scales = {"Q4_1": (32, 20, (1, 3)), "Q6_K": (256, 210, (209,)), "Q8_0": (32, 34, (1,))}[kind]
    data = torch.randint(
        0, 256, (rows, cols // block, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    for scale in scales:
        data[:, :, scale] = 0x24
    return Weight(kind, rows, cols, data.reshape(rows, -1).contiguous())


def _logits(ops: NativeOps, x: torch.Tensor, weight: Weight) -> torch.Tensor:
    out = torch.empty(x.shape[0], weight.rows)
    ops.linear(x, [weight], [out])
    return out


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "Q8_0"])
def test_products_do_not_depend_on_rows_or_threads(build, kind, bits):
    weight, x = _weight(kind, 72, 512), torch.randn(37, 512)
    one, three = NativeOps(1, build, activation_bits=bits), NativeOps(3, build, activation_bits=bits)
    whole = _logits(one, x, weight)
    assert torch.equal(_logits(three, x, weight), whole)
    for row in (0, 17, 36):
        assert torch.equal(_logits(three, x[row : row + 1], weight)[0], whole[row])


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0", "Q6_K", "Q2_K", "IQ3_S"])
def test_the_largest_codes_times_the_largest_activations_overflow_nothing(build, kind, bits):
    block, size, scales = {"Q4_0": (32, 18, (1,)), "Q5_0": (32, 22, (1,)), "Q6_K": (256, 210, (209,)),
                           "Q2_K": (256, 84, (81, 83)), "IQ3_S": (256, 110, (1,))}[kind]  # fmt: skip
    data = torch.full((16, 512 // block, size), 255, dtype=torch.uint8)
    for scale in scales:
        data[:, :, scale - 1], data[:, :, scale] = 0, 0x3C
    weight = Weight(kind, 16, 512, data.reshape(16, -1))
    x = torch.full((2, 512), 32384.0)  # as whole numbers of 16 bits: the low byte of 256 high + low is -128
    x[:, ::32] = 32512.0
    x[1] *= -1
    ops = NativeOps(1, build, activation_bits=bits)
    both = _logits(ops, x, weight)
    assert torch.equal(_logits(ops, x[:1], weight)[0], both[0])
    assert torch.equal(both[1], -both[0])
    plain = torch.empty(2, 16)
    ReferenceOps().linear(x, [weight], [plain])
    assert torch.allclose(both, plain, rtol=1e-5 if bits == 16 else 5e-3)


def test_with_8_bits_the_logits_of_a_wide_matrix_are_finer_and_do_not_depend_on_rows(build):
    weight, x = _weight("Q8_0", 1024, 64), torch.randn(9, 64)
    ops = NativeOps(2, build, activation_bits=8)
    whole = _logits(ops, x, weight)
    for row in range(9):
        assert torch.equal(_logits(ops, x[row : row + 1], weight)[0], whole[row])
    narrow = Weight("Q8_0", 512, 64, weight.data[:512])
    quants = weight.data.view(1024, 2, 34)[:, :, 2:].view(torch.int8).double()
    scales = weight.data.view(1024, 2, 34)[:, :, :2].contiguous().view(torch.float16).double()
    true = x.double() @ (quants * scales).view(1024, 64).t()
    fine = (whole - true).abs().max()
    coarse = (_logits(ops, x, narrow) - true[:, :512]).abs().max()
    assert fine < coarse / 30


def _attend(ops: NativeOps, q: torch.Tensor, cache: KvLayer, positions: list[int]) -> torch.Tensor:
    count = len(positions)
    pages = torch.arange(cache.keys.shape[0], dtype=torch.int32).flip(0)[None].contiguous()
    rows = Rows(torch.tensor(positions, dtype=torch.int32), torch.zeros(count, dtype=torch.int32),
                torch.zeros(count, dtype=torch.int32), pages)  # fmt: skip
    out = torch.empty_like(q)
    ops.attention(q, cache, rows, 0.125, out)
    return out


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [64, 40])
def test_attention_of_a_row_is_the_same_in_a_chunk_alone_and_split_over_threads(build, kind, width):
    total = 700
    pages = -(-total // PAGE)
    cache = KvLayer(torch.randn(pages, 2, PAGE, width).to(kind), torch.randn(pages, 2, PAGE, width).to(kind))
    q = torch.randn(total, 6, width)
    one, four = NativeOps(1, build), NativeOps(4, build)
    whole = _attend(four, q, cache, list(range(total)))
    for row in (0, 1, 15, 127, 128, 129, 300, 699):
        alone = q[row : row + 1].contiguous()
        assert torch.equal(_attend(one, alone, cache, [row])[0], whole[row])
        assert torch.equal(_attend(four, alone, cache, [row])[0], whole[row])


def test_splitting_over_threads_needs_no_more_memory_than_it_may_use(build):
    cache = KvLayer(torch.randn(64, 1, PAGE, 32).half(), torch.randn(64, 1, PAGE, 32).half())
    q = torch.randn(1, 1, 32)
    short, long = _attend(NativeOps(2, build), q, cache, [5]), _attend(NativeOps(2, build), q, cache, [1023])
    assert not torch.equal(short, long)


@pytest.mark.parametrize("values", [[3.0, 9.0, 9.0, 1.0], [-1.0] * 37, [float("-inf")] * 20 + [0.0]])
def test_argmax_takes_the_lowest_index_of_the_maximum(build, values):
    logits, out = torch.tensor([values]), torch.empty(1, dtype=torch.int32)
    NativeOps(1, build).argmax(logits, out)
    assert out.item() == values.index(max(values))


def test_log_softmax_agrees_with_double_precision(build):
    logits = torch.randn(3, 1001) * 8
    out = torch.empty_like(logits)
    NativeOps(2, build).log_softmax(logits, out)
    torch.testing.assert_close(out.double(), logits.double().log_softmax(-1), atol=2e-5, rtol=0)


def test_top_k_is_ordered_and_breaks_ties_by_the_lower_id():
    logits = torch.tensor([1.0, 5.0, 3.0, 5.0, float("nan"), 3.0, 0.0])
    values, ids = NativeOps(1).top_k(logits, 4)
    assert ids.tolist() == [1, 3, 2, 5] and values.tolist() == [5.0, 5.0, 3.0, 3.0]


def test_top_k_of_more_than_there_is_gives_all(build):
    values, ids = NativeOps(1, build).top_k(torch.tensor([2.0, 4.0]), 10)
    assert ids.tolist() == [1, 0] and values.tolist() == [4.0, 2.0]
