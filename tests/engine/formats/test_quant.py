"""Storage formats: decoders agree bit for bit with the gguf package, encoders too, and sizes are those of the table."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from strata_engine.errors import UsageError
from strata_engine.formats.base import TensorMeta
from strata_engine.formats.quant import FORMATS, format_of
from strata_kernels.reference.quant import BLOCKS
from tests.support.tiny_gguf import encode

NAMES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
PACKED = [name for name in NAMES if not name.endswith("_K")]
# byte offsets of the f16 fields of a block: random bytes there must not be infinities, which no writer produces
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def random_blocks(name: str, count: int, seed: int = 3) -> np.ndarray:
    random = np.random.default_rng(seed)
    size = FORMATS[name].block_bytes
    if name in ("F32", "F16", "BF16"):
        values = torch.from_numpy(random.standard_normal((count, 1), dtype=np.float32))
        return FORMATS[name].pack(values).numpy()
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    for at in HALVES.get(name, (0,)):
        blocks[:, at : at + 2] = random.standard_normal((count, 1)).astype(np.float16).view(np.uint8)
    return blocks


def by_package(name: str, data: np.ndarray) -> np.ndarray:
    return np.asarray(gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name]), np.float32)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def test_exactly_these_formats_can_be_run():
    assert sorted(FORMATS) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_those_of_the_decoders(name):
    block = BLOCKS[name]
    found = FORMATS[name]
    assert (found.block, found.block_bytes, found.packs) == (block.elements, block.nbytes, block.pack is not None)
    assert found.bits_per_weight == block.nbytes * 8 / block.elements
    assert found.row_bytes(block.elements * 3) == block.nbytes * 3


@pytest.mark.parametrize("name", NAMES)
def test_random_blocks_decode_as_the_gguf_package_does(name):
    blocks = random_blocks(name, 2000)
    assert same_bits(FORMATS[name].unpack(torch.from_numpy(blocks)).numpy(), by_package(name, blocks))


@pytest.mark.parametrize("name", NAMES)
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


def test_a_type_that_cannot_be_run_is_refused_by_name():
    meta = TensorMeta("blk.0.w", (4, 256), "IQ2_S", Path("m.gguf"), 0, 328)
    with pytest.raises(UsageError, match=r"blk\.0\.w.*IQ2_S") as caught:
        format_of(meta)
    assert "Q4_K" in caught.value.hint


def test_a_type_that_can_be_run_is_found():
    assert format_of(TensorMeta("w", (4, 256), "Q6_K", Path("m.gguf"), 0, 840)).name == "Q6_K"
