"""The same tiny model as a GGUF file and as a checkpoint directory, and quantised matrices."""

from __future__ import annotations

import random

import pytest

from strata_engine.formats.open import open_weights
from strata_kernels.reference.ops import ReferenceOps
from tests.support.forward import Runner
from tests.support.tiny_gguf import decode, write_gguf
from tests.support.tiny_models import (
    FAMILIES,
    gguf_metadata,
    gguf_tensors,
    oracle_logits,
    save_tiny,
    tiny_model,
    write_tiny,
)

IDS = random.Random(7).choices(range(128), k=40)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_file_equals_the_checkpoint_directory(tmp_path, family, tied, measured):
    model = tiny_model(family, tie_word_embeddings=tied)
    write_tiny(model, family, tmp_path / "m.gguf")
    from_gguf = Runner(open_weights(tmp_path / "m.gguf"), ReferenceOps()).all_logits(IDS)
    from_directory = Runner(open_weights(save_tiny(model, tmp_path / "d")), ReferenceOps()).all_logits(IDS)
    assert (from_gguf - from_directory).abs().max() <= 1e-5
    error = (from_gguf - oracle_logits(model, IDS)).abs().max().item()
    assert measured(family, "GGUF", "reference", "transformers", error) <= 1e-4


def test_a_split_gguf_file_is_one_model(tmp_path):
    model = tiny_model("qwen3")
    parts = write_gguf(tmp_path / "m.gguf", "qwen3", gguf_metadata(model), gguf_tensors(model, "qwen3"), splits=3)
    assert len(parts) == 3
    ours = Runner(open_weights(parts[0]), ReferenceOps()).all_logits(IDS)
    assert (ours - oracle_logits(model, IDS)).abs().max() <= 1e-4


@pytest.mark.parametrize("storage", ["F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_quantised_matrices_give_the_logits_of_their_values(tmp_path, family, storage):
    import torch

    model = tiny_model(family)
    write_tiny(model, family, tmp_path / "m.gguf", storage)
    ours = Runner(open_weights(tmp_path / "m.gguf"), ReferenceOps()).all_logits(IDS)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:  # rows keep their blocks when q and k rows change places
                parameter.copy_(torch.from_numpy(decode(parameter.numpy(), storage)))
    assert (ours - oracle_logits(model, IDS)).abs().max() <= 1e-4
