"""Logits of GGUF files that we write against llama.cpp, where its prebuilt library is at hand (LLAMACPP_LIB)."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from strata_engine.formats.open import open_weights
from strata_kernels.reference.ops import ReferenceOps
from tests.support.forward import Runner
from tests.support.llamacpp import VERSION, LlamaCpp, library_directory
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_hybrid import ARCHITECTURES, ROPE, draft_head
from tests.support.tiny_hybrid import gguf_tensors as hybrid_tensors
from tests.support.tiny_models import GGUF_ARCHITECTURES, gguf_metadata, gguf_tensors, tiny_model

IDS, PROMPT = random.Random(21).choices(range(128), k=90), 70  # the prompt is longer than a chunk of the delta rule
SECTIONS = {"mrope_interleaved": True, "mrope_section": [3, 3, 2]}  # other sections mean other things to llama.cpp


@pytest.fixture(scope="module")
def llamacpp() -> LlamaCpp:
    directory = library_directory()
    if directory is None:
        pytest.skip(f"LLAMACPP_LIB names no directory with {VERSION}")
    return LlamaCpp(directory)


def options(family: str) -> dict[str, Any]:
    """Sizes for which llama.cpp has kernels."""
    if family not in ARCHITECTURES:
        return {"head_dim": 64} if family != "llama" else {}
    rope = ROPE if family == "qwen3_next" else {**ROPE, **SECTIONS}
    return {"head_dim": 64, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "rope_parameters": rope}


CASES = [(family, False) for family in ("llama", "qwen3", "qwen3_moe", *ARCHITECTURES)]
CASES += [("qwen3_5", True), ("qwen3_5_moe", True)]  # with a draft block, which llama.cpp knows of these two only


@pytest.mark.slow  # loads a foreign library
@pytest.mark.parametrize(("family", "draft"), CASES)
def test_logits_equal_llamacpp(llamacpp, tmp_path, family, draft, measured):
    model = tiny_model(family, **options(family))
    metadata = gguf_metadata(model) | {"tokenizer.ggml.model": "none", "{a}.vocab_size": 128}
    tensors = gguf_tensors(model, family)
    if draft:
        tensors = hybrid_tensors(model, family, draft=draft_head(model)[1])
        metadata |= {"{a}.block_count": model.config.num_hidden_layers + 1, "{a}.nextn_predict_layers": 1}
    path = tmp_path / "m.gguf"
    write_gguf(path, GGUF_ARCHITECTURES.get(family, family), metadata, tensors)
    theirs = llamacpp.logits(path, IDS, PROMPT, 128)
    ours = Runner(open_weights(path), ReferenceOps()).all_logits(IDS).numpy()[PROMPT - 1 :]
    error = float(np.abs(ours - theirs).max())
    assert measured(family, "GGUF", "reference", "llama.cpp", error) <= 1e-4
    assert np.array_equal(ours.argmax(1), theirs.argmax(1))
