"""Checkpoints known by their configs alone: tensors, and bytes close to the sizes that are published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata_engine.config import EngineConfig
from strata_engine.errors import NotFound, UsageError
from strata_engine.formats.quant.logical import logical_weights
from strata_engine.models.load import load_model
from strata_engine.models.planned import PlannedSource, planned
from strata_engine.placement.estimate import estimate
from strata_kernels.reference.ops import ReferenceOps
from tests.support.published_configs import config_of
from tests.support.quantised_tiny import SCHEMES, quantised

# models.md 14.3: weights in decimal GB; the last is what 14.3 says of an official GPTQ file
PUBLISHED = {
    ("smollm2-135m", "bf16"): 0.27, ("qwen3-8b", "bf16"): 16.4, ("qwen3-8b", "fp8"): 9.4, ("qwen3-8b", "int4"): 6.1,
    ("qwen3-30b-a3b", "bf16"): 61.1, ("qwen3-30b-a3b", "fp8"): 31.2, ("qwen3-30b-a3b", "int4"): 16.8,
    ("qwen3.5-27b", "bf16"): 53.8, ("qwen3.5-27b", "fp8"): 29.4, ("qwen3.5-27b", "int4"): 17.7,
    ("qwen3.5-35b-a3b", "bf16"): 69.3, ("qwen3.5-35b-a3b", "fp8"): 35.7, ("qwen3.5-35b-a3b", "int4"): 19.5,
    ("qwen3.5-35b-a3b", "experts"): 21.6,
}  # fmt: skip
# models.md 4: elements of keys and values a token, bytes of a sequence's state
CACHES = {"smollm2-135m": (11520, 0), "qwen3-8b": (73728, 0), "qwen3-30b-a3b": (49152, 0),
          "qwen3.5-27b": (32768, 4 * (1474560 + 48 * 48 * 128 * 128)),
          "qwen3.5-35b-a3b": (10240, 4 * (737280 + 30 * 32 * 128 * 128))}  # fmt: skip


def plan(directory: Path, config: dict) -> PlannedSource:
    (directory / "config.json").write_text(json.dumps(config))
    return planned(directory)


@pytest.mark.parametrize(("name", "kind"), PUBLISHED)
def test_sizes_are_within_5_percent_of_the_published_ones(tmp_path, name, kind):
    source = plan(tmp_path, config_of(name, kind))
    wanted = PUBLISHED[name, kind] * 1e9
    stored = sum(meta.nbytes for meta in source.tensors().values())
    assert abs(stored - wanted) <= 0.05 * wanted
    priced = estimate(source, EngineConfig(max_sequences=1), 1 << 40)
    embed = source.tensors()["model.embed_tokens.weight"].nbytes
    tied = embed if config_of(name, kind).get("tie_word_embeddings") else 0  # its head is packed beside the table
    assert abs(priced.weights_bytes - tied - wanted) <= 0.05 * wanted
    elements, state_bytes = CACHES[name]
    assert priced.kv_token_bytes == 2 * elements
    assert priced.state_bytes == state_bytes


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "gptq-desc-act"])
def test_planned_tensors_are_those_of_the_checkpoint(tmp_path, name):
    source, _ = quantised("qwen3_moe", name, num_experts=4)
    config = {**source.metadata()["config"], "dtype": "float32"}
    found = plan(tmp_path, config)
    seen, wanted = logical_weights(found), logical_weights(source)
    assert {n: (w.shape, w.type) for n, w in seen.items()} == {n: (w.shape, w.type) for n, w in wanted.items()}


def test_the_names_of_an_index_tell_what_is_quantised(tmp_path):
    names = [f"model.layers.{n}.mlp.up_proj.{part}" for n in range(30) for part in ("qweight", "qzeros", "scales")]
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 64}
    source = plan(tmp_path, {**config_of("smollm2-135m", "bf16"), "quantization_config": settings})
    assert "model.layers.3.mlp.up_proj.qweight" in source.tensors()
    assert "model.layers.3.mlp.gate_proj.weight" in source.tensors()


def test_nothing_can_be_read_or_loaded(tmp_path):
    source = plan(tmp_path, config_of("smollm2-135m", "bf16"))
    with pytest.raises(NotFound, match="has no weights"):
        load_model(source, ReferenceOps())


def test_a_family_that_is_not_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="GptBigCode"):
        plan(tmp_path, {"architectures": ["GptBigCodeForCausalLM"]})
    (tmp_path / "config.json").unlink()
    with pytest.raises(NotFound, match=r"no config\.json"):
        planned(tmp_path)
