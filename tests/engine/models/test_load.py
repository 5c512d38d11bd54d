"""What is wrong with a checkpoint is said by name, all at once, before anything is loaded."""

from __future__ import annotations

import pytest
import torch

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.models import find_model
from strata_engine.models.load import load_model
from strata_kernels.reference.ops import ReferenceOps
from tests.support.tiny_models import MemorySource, memory_source, tiny_model


def changed(remove=(), add=None, **config) -> MemorySource:
    model = tiny_model("llama")
    source = memory_source(model, **config)
    tensors = {n: t for n, t in model.state_dict().items() if n in source.tensors() and n not in remove}
    return MemorySource({**tensors, **(add or {})}, source.metadata()["config"])


def test_every_missing_tensor_is_named():
    gone = ("model.norm.weight", "model.layers.1.mlp.up_proj.weight")
    with pytest.raises(CorruptFile) as caught:
        load_model(changed(remove=gone), ReferenceOps())
    assert all(name in caught.value.message for name in gone)
    assert "2 tensors are missing" in caught.value.message


def test_a_wrong_shape_is_told_with_both_shapes():
    with pytest.raises(CorruptFile, match=r"norm.weight has shape \[63\], expected \[64\]"):
        load_model(changed(add={"model.norm.weight": torch.ones(63)}), ReferenceOps())


def test_an_unsupported_storage_type_is_refused_by_name():
    bad = {"model.layers.0.mlp.up_proj.weight": torch.zeros(96, 64, dtype=torch.int8)}
    with pytest.raises(UsageError, match=r"up_proj.weight is stored as I8"):
        load_model(changed(add=bad), ReferenceOps())


def test_an_unused_tensor_is_a_notice():
    loaded = load_model(changed(add={"model.extra.weight": torch.zeros(3)}), ReferenceOps())
    assert [n.code for n in loaded.notices] == ["unused_tensors"]
    assert "model.extra.weight" in loaded.notices[0].message


def test_stored_rotary_frequencies_are_not_reported():
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    assert load_model(changed(add=extra), ReferenceOps()).notices == ()


def test_progress_ends_at_the_total_and_never_falls():
    seen = []
    load_model(changed(), ReferenceOps(), progress=lambda done, total: seen.append((done, total)))
    done = [d for d, _ in seen]
    assert done == sorted(done) and seen[-1][0] == seen[-1][1] > 0


def test_parameters_are_counted_once_when_the_head_is_tied():
    model = tiny_model("llama")
    assert load_model(memory_source(model), ReferenceOps()).parameters == model.num_parameters()


@pytest.mark.parametrize("name", ["GptBigCodeForCausalLM", "LlamaForSequenceClassification"])
def test_an_unknown_architecture_is_named_with_the_supported_ones(name):
    with pytest.raises(UsageError, match=name) as caught:
        find_model(memory_source(tiny_model("llama"), architectures=[name]))
    assert "Qwen3ForCausalLM" in caught.value.hint


def test_the_model_type_serves_when_no_architecture_is_named():
    assert find_model(memory_source(tiny_model("qwen2"), architectures=None)).__name__ == "Qwen2"


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "hqq"}}, "hqq"),
        ({"sliding_window": 64}, "sliding"),
    ],
)
def test_what_the_maths_does_not_cover_is_refused(config, named):
    with pytest.raises(UsageError, match=named):
        load_model(changed(**config), ReferenceOps())


@pytest.mark.parametrize(
    "config", [{"hidden_size": None}, {"num_attention_heads": 0}, {"rms_norm_eps": "x"}, {"num_key_value_heads": 3}]
)
def test_a_bad_config_value_is_an_error_of_the_file(config):
    with pytest.raises(CorruptFile):
        load_model(changed(**config), ReferenceOps())


def test_biases_of_a_llama_config_are_loaded():
    model = tiny_model("llama", attention_bias=True, mlp_bias=True)
    from tests.support.forward import Runner
    from tests.support.tiny_models import oracle_logits

    ids = list(range(30))
    assert (Runner(memory_source(model), ReferenceOps()).all_logits(ids) - oracle_logits(model, ids)).abs().max() < 1e-4
