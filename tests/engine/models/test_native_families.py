"""Every family on the native CPU kernels: transformers' logits with F32 weights, the same bits in any batch."""

from __future__ import annotations

import random

import pytest

from strata_engine.formats.open import open_weights
from strata_kernels.binding import KernelsUnavailable
from strata_kernels.native import NativeOps
from tests.support.forward import Runner, assert_same_bits
from tests.support.tiny_models import (
    FAMILIES,
    memory_source,
    oracle_logits,
    tiny_model,
    write_tiny,
)

IDS = random.Random(5).choices(range(128), k=70)
CHUNKINGS = {"at once": [70], "in odd chunks": [1, 17, 31, 16, 5], "then single tokens": [58] + [1] * 12}


@pytest.fixture(scope="module")
def ops() -> NativeOps:
    try:
        return NativeOps(threads=2)
    except KernelsUnavailable as reason:
        pytest.skip(f"no native kernels here: {reason}")


@pytest.mark.parametrize("chunks", CHUNKINGS.values(), ids=CHUNKINGS.keys())
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_f32_weights_equal_transformers(ops, family, chunks, measured):
    model = tiny_model(family)
    error = (Runner(memory_source(model), ops).all_logits(IDS, chunks) - oracle_logits(model, IDS)).abs().max().item()
    assert measured(family, "safetensors", "native", "transformers", error) <= 1e-3


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("storage", ["F32", "F16", "Q8_0", "Q4_1"])
def test_a_row_has_the_same_bits_alone_among_eight_and_in_any_chunk(ops, tmp_path, family, storage):
    model = tiny_model(family)
    write_tiny(model, family, tmp_path / "m.gguf", storage)
    runner = Runner(open_weights(tmp_path / "m.gguf"), ops, kv_type="f16")
    prompts = [[(7 * i + 3 * j * j) % 128 for j in range(20 + i)] for i in range(8)]
    assert_same_bits(runner, prompts)


@pytest.mark.parametrize("storage", ["F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_quantised_matrices_stay_near_the_plain_operations(ops, tmp_path, family, storage):
    from strata_kernels.reference.ops import ReferenceOps

    model = tiny_model(family)
    write_tiny(model, family, tmp_path / "m.gguf", storage)
    source = open_weights(tmp_path / "m.gguf")
    ours, exact = Runner(source, ops).all_logits(IDS), Runner(source, ReferenceOps()).all_logits(IDS)
    # activations are int8 in blocks of 32: about half a percent an operand, and a tiny model averages little of it away
    assert (ours - exact).abs().mean() < 0.03 * exact.std()
    assert (ours - exact).abs().max() < 0.2 * exact.std()


NEW_STORAGE = ["IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", "Q2_K", "Q3_K", "TQ1_0", "IQ1_M", "IQ2_XS", "IQ2_XXS", "IQ3_S"]


@pytest.mark.parametrize("storage", NEW_STORAGE)
def test_files_of_table_and_codebook_types_give_the_logits_of_the_plain_operations(ops, tmp_path, storage):
    from strata_kernels.reference.ops import ReferenceOps

    model = tiny_model("llama", hidden_size=256, intermediate_size=256)
    write_tiny(model, "llama", tmp_path / "m.gguf", storage)
    source = open_weights(tmp_path / "m.gguf")
    ours, exact = Runner(source, ops).all_logits(IDS), Runner(source, ReferenceOps()).all_logits(IDS)
    assert (ours - exact).abs().max() < 2e-3 * exact.std()
