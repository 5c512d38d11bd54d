"""Matrices laid anew for the kernels: every value is the one that the layout's own reader gives, to the last bit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_engine.formats.quant.awq import AwqLayout
from strata_engine.formats.quant.compressed import IntLayout, PackedLayout
from strata_engine.formats.quant.fp8 import Fp8Layout
from strata_engine.formats.quant.gptq import GptqLayout
from strata_engine.formats.quant.layout import Layout
from strata_engine.formats.quant.own_block import NAMES, type_for
from strata_engine.formats.quant.qqq import QqqLayout
from strata_engine.formats.quant.relay import Relaid, relay
from strata_kernels.ops import Weight
from strata_kernels.reference.dense import dequantise
from tests.support import packed_weights as writers

SEED = st.integers(0, 2**32 - 1)
SHAPE = st.sampled_from(
    [(16, 96, 32), (8, 256, 128), (8, 256, -1), (8, 96, -1), (8, 384, 64), (8, 120, 40), (8, 80, 32)]
)


def arrays(parts: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """As numpy sees stored tensors: u16 for bf16, u8 for 8-bit floats."""
    stands = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8}
    found = {name: part.view(stands.get(part.dtype, part.dtype)).numpy() for name, part in parts.items()}
    return {name: a.view(np.uint16) if a.dtype == np.int16 else a for name, a in found.items()}


def values(found: Relaid, rows: int, cols: int) -> torch.Tensor:
    return dequantise(Weight(found.type, rows, cols, found.data, order=found.order))


def same(layout: Layout, parts: Mapping[str, torch.Tensor], **options: bool) -> Relaid:
    """Relaid, after checking it against the layout's reader."""
    wanted = layout.unpack(parts)
    found = relay(layout, arrays(parts), **options)
    assert torch.equal(values(found, *wanted.shape), wanted)
    return found


@settings(max_examples=12, deadline=None)
@given(SEED, st.sampled_from([2, 3, 4, 8]), SHAPE, st.sampled_from([1, 2]))
def test_gptq(seed, bits, shape, version):
    outs, ins, size = shape
    if outs * bits % 32 or ins * bits % 32:
        outs, ins = 32, 96 if size in (32, -1) else 160 if size == 40 else 384
    matrix = writers.random_codes(seed, outs, ins, size, bits)
    layout = GptqLayout(bits, size, symmetric=False, zeros_less_one=version == 1)
    found = same(layout, writers.gptq(matrix, version))
    assert found.type == type_for(*layout.coding, ins)
    assert found.order is None


def test_the_largest_block_that_divides_a_group_is_taken():
    sizes = {(128, 256): "I4_128", (-1, 256): "I4_128", (64, 256): "I4_32", (-1, 96): "I4_32", (40, 120): "F32"}
    sizes |= {(512, 256): "I4_128", (256, 512): "I4_128", (32, 80): "F32", (128, 192): "I4_32"}
    assert {key: type_for("I4", *key) for key in sizes} == sizes
    assert type_for("F8", 128, 128) in NAMES


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_columns_of_scattered_groups_are_sorted_and_their_order_kept(seed, bits):
    order = np.random.default_rng(seed).permutation(128)
    matrix = writers.random_codes(seed, 8, 128, 32, bits, groups=(order // 32).tolist())
    layout, parts = GptqLayout(bits, 32, symmetric=False), writers.gptq(matrix)
    found = same(layout, parts)
    assert found.type == f"I{bits}_32" and found.order is not None
    assert same(layout, parts, keep_order=False).type == "F32"


def test_unequal_groups_become_floats():
    matrix = writers.random_codes(1, 8, 64, 32, groups=[0] * 20 + [1] * 44)
    assert same(GptqLayout(4, 32, symmetric=False), writers.gptq(matrix)).type == "F32"


@pytest.mark.parametrize("bad", [[0] * 63 + [4], [-1] + [0] * 63])
def test_impossible_group_numbers_are_refused(bad):
    parts = writers.gptq(writers.random_codes(5, 8, 64, 16)) | {"g_idx": torch.tensor(bad, dtype=torch.int32)}
    with pytest.raises(ValueError, match="there are 4 groups"):
        relay(GptqLayout(4, 16, symmetric=False), arrays(parts))


def test_zeros_that_are_left_out_are_the_middle_code():
    matrix = writers.random_codes(4, 8, 64, 32)
    matrix.zeros[:] = 8
    same(GptqLayout(4, 32), writers.gptq(matrix, qzeros=False))


@settings(max_examples=8, deadline=None)
@given(SEED, SHAPE)
def test_awq(seed, shape):
    same(AwqLayout(shape[2]), writers.awq(writers.random_codes(seed, 24, *shape[1:])))


def test_awq_of_an_odd_number_of_inputs():
    assert same(AwqLayout(-1), writers.awq(writers.random_codes(3, 8, 7, -1))).type == "F32"


@settings(max_examples=3, deadline=None)
@given(SEED, st.booleans())
def test_qqq(seed, grouped):
    random = np.random.default_rng(seed)
    codes, scales = random.integers(0, 16, (64, 256)), random.standard_normal(64).astype(np.float32)
    groups = (random.standard_normal((64, 2)) * 16).astype(np.float16) if grouped else None
    found = same(QqqLayout(128 if grouped else -1), writers.qqq(codes, scales, groups))
    assert found.type == ("I8_128" if grouped else "I4_128")


@settings(max_examples=12, deadline=None)
@given(SEED, st.integers(2, 8), SHAPE, st.booleans())
def test_packed(seed, bits, shape, symmetric):
    outs, ins, size = shape
    matrix = writers.random_codes(seed, outs, ins, size, bits)
    if symmetric:
        matrix.zeros[:] = 1 << (bits - 1)
    layout = PackedLayout(bits, size, symmetric)
    assert same(layout, writers.packed(matrix, symmetric)).type == type_for(*layout.coding, ins)


def test_packed_scales_may_be_bf16_and_zeros_signed_bytes():
    matrix = writers.random_codes(7, 8, 64, 32)
    parts = writers.packed(matrix, symmetric=True)
    parts |= {"weight_zero_point": torch.from_numpy((matrix.zeros - 8).astype(np.int8))}
    parts["weight_scale"] = parts["weight_scale"].to(torch.bfloat16)
    assert same(PackedLayout(4, 32, symmetric=False), parts).type == "I4_32"


def test_packed_groups_may_be_unset_or_scattered():
    plain = writers.packed(writers.random_codes(6, 8, 64, 32), False)
    layout = PackedLayout(4, 32, symmetric=False)
    assert same(layout, plain | {"weight_g_idx": torch.full((64,), -1, dtype=torch.int32)}).order is None
    groups = [(5 * k) % 64 // 32 for k in range(64)]
    mixed = writers.random_codes(6, 8, 64, 32, groups=groups)
    assert same(layout, writers.packed(mixed, False, g_idx=True)).order is not None


@settings(max_examples=8, deadline=None)
@given(SEED, st.sampled_from([-1, 32]), st.booleans())
def test_int8(seed, group_size, symmetric):
    random = np.random.default_rng(seed)
    count = 1 if group_size == -1 else 3
    parts = {
        "weight": torch.from_numpy(random.integers(-128, 128, (6, 96)).astype(np.int8)),
        "weight_scale": torch.from_numpy(random.standard_normal((6, count)).astype(np.float32)),
    }
    if not symmetric:
        parts["weight_zero_point"] = torch.from_numpy(random.integers(-128, 128, (6, count)).astype(np.int8))
    assert same(IntLayout(group_size, symmetric), parts).type == "I8_32"


@pytest.mark.parametrize("shape", [(6, 1), (6,), (1,), (1, 1), ()])
def test_one_scale_may_have_several_shapes(shape):
    scale = torch.arange(1, 7).float().reshape(shape) if shape in ((6, 1), (6,)) else torch.full(shape, 3.0)
    codes = torch.arange(-96, 96, dtype=torch.int8).reshape(6, 32)
    same(IntLayout(-1), {"weight": codes, "weight_scale": scale})
    same(Fp8Layout(None, "weight_scale"), {"weight": codes.float().to(torch.float8_e4m3fn), "weight_scale": scale})


@settings(max_examples=8, deadline=None)
@given(SEED, st.integers(1, 300), st.sampled_from([128, 256, 300, 32, 96, 5]))
def test_fp8_blocks(seed, outs, ins):
    random = np.random.default_rng(seed)
    stored = random.integers(0, 0x7F, (outs, ins)) | random.integers(0, 2, (outs, ins)) << 7
    scale = random.standard_normal((-(-outs // 128), -(-ins // 128))).astype(np.float32)
    parts = {
        "weight": torch.from_numpy(stored.astype(np.uint8)).view(torch.float8_e4m3fn),
        "weight_scale_inv": torch.from_numpy(scale),
    }
    layout = Fp8Layout((128, 128))
    assert same(layout, parts).type == type_for(*layout.coding, ins)


def test_fp8_weights_that_are_no_numbers_are_refused():
    parts = {"weight": np.full((2, 32), 0xFF, np.uint8), "weight_scale_inv": np.ones((1, 1), np.float32)}
    with pytest.raises(ValueError, match="not a number"):
        relay(Fp8Layout((128, 128)), parts)


@pytest.mark.parametrize(
    "layout",
    [GptqLayout(4, 128), GptqLayout(3, 32), AwqLayout(64), QqqLayout(-1), QqqLayout(128), PackedLayout(4, 128),
     PackedLayout(8, -1, False), IntLayout(-1), Fp8Layout((128, 128))],
    ids=lambda layout: f"{layout.label} {layout.coding}",
)  # fmt: skip
def test_what_is_stored_for_a_shape_measures_as_that_shape(layout):
    parts = layout.stored(256, 384)
    assert layout.measure({name: shape for name, (_, shape) in parts.items()}) == (256, 384)
    known = {part.name: part.types for part in layout.parts}
    assert all(kind in known[name] for name, (kind, _) in parts.items())
