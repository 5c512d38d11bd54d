"""Quantised safetensors layouts: what writers from their descriptions pack, our readers unpack, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_engine.formats.quant.awq import AwqLayout
from strata_engine.formats.quant.compressed import IntLayout, PackedLayout
from strata_engine.formats.quant.fp8 import Fp8Layout
from strata_engine.formats.quant.gptq import GptqLayout
from strata_engine.formats.quant.qqq import QqqLayout
from tests.support import packed_weights as writers

SEED = st.integers(0, 2**32 - 1)


@settings(max_examples=40, deadline=None)
@given(SEED, st.sampled_from([2, 3, 4, 8]), st.sampled_from([-1, 32, 96, 40]), st.sampled_from([1, 2]))
def test_gptq_matrices_come_back(seed, bits, group_size, version):
    matrix = writers.random_codes(seed, 32, 96, group_size, bits)
    layout = GptqLayout(bits, group_size, symmetric=False, zeros_less_one=version == 1)
    parts = writers.gptq(matrix, version)
    assert layout.measure({name: tuple(part.shape) for name, part in parts.items()}) == (32, 96)
    assert torch.equal(layout.unpack(parts), matrix.values())


@settings(max_examples=20, deadline=None)
@given(SEED, st.permutations(range(64)))
def test_gptq_groups_may_come_in_any_order(seed, order):
    groups = [order[k] // 16 for k in range(64)]
    matrix = writers.random_codes(seed, 8, 64, 16, groups=groups)
    layout = GptqLayout(4, 16, symmetric=False)
    assert torch.equal(layout.unpack(writers.gptq(matrix)), matrix.values())


def test_columns_can_be_put_in_runs_of_their_groups():
    groups = [(7 * k) % 64 // 16 for k in range(64)]
    matrix = writers.random_codes(1, 8, 64, 16, groups=groups)
    codes = GptqLayout(4, 16, symmetric=False).codes(writers.gptq(matrix))
    runs, order = codes.in_runs()
    assert order is not None
    assert runs.group_of_columns().tolist() == sorted(groups)
    assert torch.equal(runs.values(), matrix.values()[:, order])


@pytest.mark.parametrize("g_idx", [True, False])
def test_groups_in_the_usual_order_are_seen_from_the_data(g_idx):
    """A file may say desc_act and yet hold the plain order."""
    matrix = writers.random_codes(2, 8, 64, 16)
    codes = GptqLayout(4, 16, symmetric=False).codes(writers.gptq(matrix, g_idx=g_idx))
    assert codes.groups is None
    assert codes.in_runs()[1] is None


def test_stored_maximum_zeros_of_version_1_do_not_touch_their_neighbours():
    matrix = writers.random_codes(3, 16, 32, 32)
    matrix.zeros[:, 0] = [0, 5, 0, 0, 8, 0, 15, 1] * 2  # zero 0 is stored as 15
    parts = writers.gptq(matrix, version=1)
    assert parts["qzeros"][0, 0].item() & 15 == 15
    assert torch.equal(GptqLayout(4, 32, symmetric=False).unpack(parts), matrix.values())


def test_symmetric_gptq_may_leave_the_zeros_out():
    matrix = writers.random_codes(4, 8, 64, 32)
    matrix.zeros[:] = 8
    parts = writers.gptq(matrix, qzeros=False)
    assert torch.equal(GptqLayout(4, 32).unpack(parts), matrix.values())


@pytest.mark.parametrize("bad", [[0] * 63 + [4], [-1] + [0] * 63])
def test_impossible_group_numbers_are_refused(bad):
    matrix = writers.random_codes(5, 8, 64, 16)
    parts = writers.gptq(matrix) | {"g_idx": torch.tensor(bad, dtype=torch.int32)}
    with pytest.raises(ValueError, match="there are 4 groups"):
        GptqLayout(4, 16, symmetric=False).unpack(parts)


@settings(max_examples=20, deadline=None)
@given(SEED, st.sampled_from([-1, 32, 64]), st.sampled_from([96, 160, 7]))
def test_awq_matrices_come_back(seed, group_size, ins):
    matrix = writers.random_codes(seed, 24, ins, group_size)
    assert torch.equal(AwqLayout(group_size).unpack(writers.awq(matrix)), matrix.values())


def test_awq_columns_are_interleaved():
    parts = {
        "qweight": torch.tensor([[0x76543210]], dtype=torch.int32),
        "scales": torch.ones(1, 8, dtype=torch.float16),
        "qzeros": torch.tensor([[0]], dtype=torch.int32),
    }
    assert AwqLayout(-1).unpack(parts)[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


@settings(max_examples=6, deadline=None)
@given(SEED, st.sampled_from([(64, 32), (128, 128)]))
def test_qqq_matrices_come_back_per_channel(seed, shape):
    random = np.random.default_rng(seed)
    codes, scales = random.integers(0, 16, shape), random.standard_normal(shape[0]).astype(np.float32)
    layout = QqqLayout(-1)
    parts = writers.qqq(codes, scales, None)
    integers, _ = layout.integers(parts)
    signed = np.where(codes < 8, codes, codes - 16)
    assert np.array_equal(integers.numpy(), signed * 16)
    assert np.array_equal(layout.unpack(parts).numpy(), (signed * 16).astype(np.float32) * scales[:, None])
    empty = parts | {"s_group": torch.empty(0, dtype=torch.float16)}
    assert torch.equal(layout.unpack(empty), layout.unpack(parts))


@settings(max_examples=6, deadline=None)
@given(SEED, st.sampled_from([(64, 128), (128, 384)]))
def test_qqq_matrices_come_back_per_group(seed, shape):
    random = np.random.default_rng(seed)
    codes, scales = random.integers(0, 16, shape), random.standard_normal(shape[0]).astype(np.float32)
    groups = (random.standard_normal((shape[0], shape[1] // 128)) * 16).astype(np.float16)
    layout = QqqLayout(128)
    parts = writers.qqq(codes, scales, groups)
    integers, _ = layout.integers(parts)
    steps = (codes - 8) * np.repeat(groups.astype(np.float64), 128, 1)  # exact
    assert np.array_equal(integers.numpy(), np.clip(np.rint(steps), -128, 127))
    assert torch.equal(layout.unpack(parts), integers.float() * torch.from_numpy(scales)[:, None])


@settings(max_examples=40, deadline=None)
@given(SEED, st.integers(2, 8), st.sampled_from([-1, 32]), st.booleans(), st.sampled_from([96, 100]))
def test_packed_matrices_come_back(seed, bits, group_size, symmetric, ins):
    matrix = writers.random_codes(seed, 13, ins, group_size, bits)
    if symmetric:
        matrix.zeros[:] = 1 << (bits - 1)
    layout = PackedLayout(bits, group_size, symmetric)
    assert torch.equal(layout.unpack(writers.packed(matrix, symmetric)), matrix.values())


def test_packed_groups_may_come_in_any_order_or_be_unset():
    groups = [(5 * k) % 64 // 16 for k in range(64)]
    layout = PackedLayout(4, 16, symmetric=False)
    matrix = writers.random_codes(6, 8, 64, 16, groups=groups)
    assert torch.equal(layout.unpack(writers.packed(matrix, False, g_idx=True)), matrix.values())
    plain = writers.random_codes(6, 8, 64, 16)
    unset = writers.packed(plain, False) | {"weight_g_idx": torch.full((64,), -1, dtype=torch.int32)}
    assert torch.equal(layout.unpack(unset), plain.values())


def test_packed_zeros_may_be_signed_bytes():
    matrix = writers.random_codes(7, 8, 64, 16)
    bytes_ = {"weight_zero_point": torch.from_numpy((matrix.zeros - 8).astype(np.int8))}
    parts = writers.packed(matrix, symmetric=True) | bytes_
    assert torch.equal(PackedLayout(4, 16, symmetric=False).unpack(parts), matrix.values())


def test_zeros_of_few_outputs_are_one_word_down():
    matrix = writers.random_codes(8, 5, 96, 32)
    parts = writers.packed(matrix, symmetric=False)
    parts["weight_zero_point"] = parts["weight_zero_point"].reshape(-1).clone().reshape(1, 3)  # strides as when read
    assert torch.equal(PackedLayout(4, 32, symmetric=False).unpack(parts), matrix.values())


def test_words_packed_each_on_its_own_are_refused():
    """Releases before 0.20 padded every word for 3, 5, 6 and 7 bits."""
    shapes = {"weight_packed": (4, 7), "weight_scale": (4, 1)}
    with pytest.raises(ValueError, match="rows of 7 words, 64 codes of 3 bits"):
        PackedLayout(3, -1).measure(shapes, (4, 64))


@settings(max_examples=20, deadline=None)
@given(SEED, st.sampled_from([-1, 32]), st.booleans())
def test_int8_matrices_come_back(seed, group_size, symmetric):
    random = np.random.default_rng(seed)
    matrix = writers.random_codes(seed, 6, 96, group_size, 8)
    codes = random.integers(-128, 128, (6, 96))
    zeros = np.zeros_like(matrix.zeros) if symmetric else random.integers(-128, 128, matrix.zeros.shape)
    parts = {
        "weight": torch.from_numpy(codes.astype(np.int8)),
        "weight_scale": torch.from_numpy(matrix.scales).to(torch.bfloat16),
    }
    if not symmetric:
        parts["weight_zero_point"] = torch.from_numpy(zeros.astype(np.int8))
    scales = parts["weight_scale"].float().numpy()
    wanted = writers.Codes(codes, scales, zeros, matrix.groups, 8).values()
    assert torch.equal(IntLayout(group_size, symmetric).unpack(parts), wanted)


@pytest.mark.parametrize("shape", [(6, 1), (6,), (1,), (1, 1), ()])
def test_one_group_may_share_a_scale_in_several_shapes(shape):
    scale = torch.arange(1, 7).float().reshape(shape) if shape in ((6, 1), (6,)) else torch.full(shape, 3.0)
    codes = torch.arange(-12, 12, dtype=torch.int8).reshape(6, 4)
    wanted = codes.float() * scale.reshape(-1, 1)
    assert torch.equal(IntLayout(-1).unpack({"weight": codes, "weight_scale": scale}), wanted)
    eighths = codes.float().to(torch.float8_e4m3fn)
    got = Fp8Layout(None, "weight_scale").unpack({"weight": eighths, "weight_scale": scale})
    assert torch.equal(got, eighths.float() * scale.reshape(-1, 1))


@settings(max_examples=10, deadline=None)
@given(SEED, st.integers(1, 300), st.integers(1, 300))
def test_fp8_blocks_share_a_scale_and_may_be_cut_at_the_edges(seed, outs, ins):
    random = np.random.default_rng(seed)
    stored = random.integers(0, 0x7F, (outs, ins)) | random.integers(0, 2, (outs, ins)) << 7
    scale = random.standard_normal((-(-outs // 128), -(-ins // 128))).astype(np.float32)
    parts = {
        "weight": torch.from_numpy(stored.astype(np.uint8)).view(torch.float8_e4m3fn),
        "weight_scale_inv": torch.from_numpy(scale),
    }
    got = Fp8Layout((128, 128)).unpack(parts).numpy()
    for n, k in {(0, 0), (outs - 1, ins - 1), (outs // 2, ins // 3), (min(127, outs - 1), min(128, ins - 1))}:
        assert got[n, k] == np.float32(e4m3(int(stored[n, k]))) * scale[n // 128, k // 128]


def e4m3(code: int) -> float:
    """An 8-bit float from its bits."""
    exponent, mantissa = code >> 3 & 15, code & 7
    size = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if code >> 7 else size


GPTQ_SHAPES = {"qweight": (12, 32), "scales": (3, 32), "qzeros": (3, 4), "g_idx": (96,)}
AWQ_SHAPES = {"qweight": (96, 4), "scales": (3, 32), "qzeros": (3, 4)}
QQQ_SHAPES = {"B": (16, 128), "s_channel": (1, 64), "s_group": (2, 64)}
PACKED_SHAPES = {"weight_packed": (8, 12), "weight_scale": (8, 3), "weight_zero_point": (1, 3), "weight_g_idx": (96,)}
FP8_SHAPES = {"weight": (256, 384), "weight_scale_inv": (2, 3)}


@pytest.mark.parametrize(
    ("layout", "shapes", "size"),
    [
        (GptqLayout(4, 32), GPTQ_SHAPES, (32, 96)),
        (AwqLayout(32), AWQ_SHAPES, (32, 96)),
        (QqqLayout(128), QQQ_SHAPES, (64, 256)),
        (PackedLayout(4, 32, False), PACKED_SHAPES, (8, 96)),
        (IntLayout(32), {"weight": (8, 96), "weight_scale": (8, 3)}, (8, 96)),
        (Fp8Layout((128, 128)), FP8_SHAPES, (256, 384)),
    ],
    ids=lambda value: getattr(value, "label", ""),
)
def test_a_part_of_another_shape_is_named(layout, shapes, size):
    assert layout.measure(shapes) == size
    for name in shapes:
        for wrong in [(*shapes[name][:-1], shapes[name][-1] + 3), (*shapes[name], 2), (5,), (), (0, 0)]:
            with pytest.raises(ValueError, match="has shape|multiple of|do not fill"):
                layout.measure({**shapes, name: wrong})


@pytest.mark.parametrize("stated", [(8, 90), (9, 96), (8, 128), (8,), (8, 96, 1)])
def test_a_stated_shape_must_fit_the_words(stated):
    with pytest.raises(ValueError, match="weight_shape says|do not fill|expected"):
        PackedLayout(4, 32, False).measure(PACKED_SHAPES, stated)
