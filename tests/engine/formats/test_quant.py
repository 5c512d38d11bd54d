"""Storage formats: decoders agree bit for bit with the gguf package, encoders too, and sizes are those of the table."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from benches.random_blocks import set_scales
from strata_engine.errors import UsageError
from strata_engine.formats.base import TensorMeta
from strata_engine.formats.gguf_types import TYPES_BY_NAME
from strata_engine.formats.quant import FORMATS, format_of, require_kernel
from strata_kernels.reference.quant import BLOCKS
from strata_kernels.registry import weight_types
from tests.support.tiny_gguf import encode

FLOATS = ["F32", "F16", "BF16"]
PACKED = [*FLOATS, "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
DECODED = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]
DECODED += ["IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", "TQ1_0", "TQ2_0"]
NOT_IN_PACKAGE = ["Q1_0", "Q2_0", "I4_32", "I4_128", "I8_32", "I8_128", "F8_32", "F8_128"]
NAMES = [*PACKED, *DECODED, *NOT_IN_PACKAGE]
IN_PACKAGE = [*PACKED, *DECODED]


def random_blocks(name: str, count: int, seed: int = 3) -> np.ndarray:
    """Every code may occur; scales of either sign, normal and subnormal, and zero."""
    random = np.random.default_rng(seed)
    if name in FLOATS:
        values = torch.from_numpy(random.standard_normal((count, 1), dtype=np.float32))
        return FORMATS[name].pack(values).numpy()
    blocks = random.integers(0, 256, (count, FORMATS[name].block_bytes), dtype=np.uint8)
    if name == "MXFP4":
        blocks[blocks[:, 0] > 250, 0] = 250  # larger ones decode to infinities
    elif name != "NVFP4":  # every byte is a valid scale there
        scale = random.standard_normal((count, 1)) * random.choice([1, 1e-5, 0], (count, 1))
        set_scales(blocks, name, scale)
    return blocks


def by_package(name: str, data: np.ndarray) -> np.ndarray:
    return np.asarray(gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name]), np.float32)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def test_exactly_these_formats_can_be_run():
    assert sorted(FORMATS) == sorted(NAMES) == sorted(BLOCKS)


def test_every_weight_type_of_the_table_can_be_run():
    of_activations, integers = {"Q8_1", "Q8_K"}, {"I8", "I16", "I32", "I64", "F64"}
    assert set(TYPES_BY_NAME) - set(FORMATS) == of_activations | integers


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_those_of_the_decoders(name):
    block = BLOCKS[name]
    found = FORMATS[name]
    assert (found.block, found.block_bytes, found.packs) == (block.elements, block.nbytes, block.pack is not None)
    assert found.bits_per_weight == block.nbytes * 8 / block.elements
    assert found.row_bytes(block.elements * 3) == block.nbytes * 3


@pytest.mark.parametrize("name", IN_PACKAGE)
def test_random_blocks_decode_as_the_gguf_package_does(name):
    blocks = random_blocks(name, 2000)
    assert same_bits(FORMATS[name].unpack(torch.from_numpy(blocks)).numpy(), by_package(name, blocks))


@pytest.mark.parametrize("name", IN_PACKAGE)
def test_rows_of_several_blocks_keep_their_shape(name):
    blocks = random_blocks(name, 24).reshape(2, 4, -1)
    values = FORMATS[name].unpack(torch.from_numpy(blocks))
    assert values.shape == (2, 4, 3 * FORMATS[name].block)
    assert same_bits(values.numpy(), by_package(name, blocks))


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1000.0])
def test_encoders_write_what_the_gguf_package_writes(name, scale):
    values = np.random.default_rng(5).standard_normal((40, 128), dtype=np.float32) * np.float32(scale)
    values[3] = 0
    values[4] = np.abs(values[4])
    wanted = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8)
    assert np.array_equal(FORMATS[name].pack(torch.from_numpy(values)).numpy(), wanted)


@pytest.mark.parametrize(
    ("name", "share"),
    [("F32", 0), ("F16", 2**-11), ("BF16", 2**-8), ("Q8_0", 1 / 250), ("Q5_1", 1 / 60), ("Q5_0", 1 / 15)]
    + [("Q4_1", 1 / 29), ("Q4_0", 1 / 7)],
)
def test_a_round_trip_stays_within_half_a_step(name, share):
    """`share` of the span of a block bounds the error: half a step, and a little for f16 scales."""
    values = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
    back = FORMATS[name].unpack(FORMATS[name].pack(values))
    span = values.amax(1, keepdim=True) - values.amin(1, keepdim=True)
    assert ((back - values).abs() <= span * share).all()


@pytest.mark.parametrize(("name", "share"), [("Q4_K", 1 / 25), ("Q5_K", 1 / 50), ("Q6_K", 1 / 50)])
def test_the_test_encoders_of_k_formats_stay_near_the_values(name, share):
    """Tiny models of other tests are written with them: `share` of the span of a sub-block bounds the error."""
    values = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
    back = FORMATS[name].unpack(torch.from_numpy(encode(values.numpy(), name)))
    span = values.amax(1, keepdim=True) - values.amin(1, keepdim=True)
    assert ((back - values).abs() <= span * share).all()


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K"])
def test_a_format_without_an_encoder_says_so(name):
    with pytest.raises(ValueError, match="no encoder"):
        FORMATS[name].pack(torch.zeros(256))


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K"])
def test_part_blocks_are_refused(name):
    with pytest.raises(ValueError, match="blocks"):
        FORMATS[name].unpack(torch.zeros(33, dtype=torch.uint8))
    with pytest.raises(ValueError, match="blocks"):
        FORMATS[name].row_bytes(33)


def stored_as(name: str) -> TensorMeta:
    return TensorMeta("blk.0.w", (4, 256), name, Path("m.gguf"), 0, 328)


def test_a_type_that_cannot_be_run_is_refused_by_name():
    with pytest.raises(UsageError, match=r"blk\.0\.w.*Q8_K") as caught:
        format_of(stored_as("Q8_K"))
    assert "Q4_K" in caught.value.hint


def test_a_type_that_can_be_run_is_found():
    assert format_of(stored_as("Q6_K")).name == "Q6_K"


def test_a_type_without_a_native_kernel_is_refused_with_the_way_out():
    with pytest.raises(UsageError, match=r"no native kernel for IQ3_S yet.*blk\.0\.w") as caught:
        require_kernel(stored_as("IQ3_S"), "native", {"Q4_0", "F32"})
    assert "--kernels reference" in caught.value.hint


@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_kernels_run_the_types_they_say_they_have(kernels):
    types = weight_types(kernels)
    assert {require_kernel(stored_as(name), kernels, types).name for name in types} == types
    with pytest.raises(UsageError, match="cannot be run"):
        require_kernel(stored_as("I32"), kernels, types)


def test_the_reference_runs_every_format():
    assert weight_types("reference") == set(FORMATS)


def test_unknown_kernels_have_no_types():
    with pytest.raises(ValueError, match="'magic'"):
        weight_types("magic")
