"""Hybrids of delta nets and attention: unusual numbers, both spellings of everything, and refusals."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from strata_engine.errors import CorruptFile
from strata_engine.formats.base import WeightSource
from strata_engine.formats.open import open_weights
from strata_engine.memory.kv import KvMemory
from strata_engine.memory.state import StateMemory
from strata_engine.models import find_model
from strata_engine.models.load import load_model
from strata_kernels.reference.ops import ReferenceOps
from tests.support.forward import Runner
from tests.support.tiny_gguf import choose_type, decode, write_gguf
from tests.support.tiny_hybrid import ARCHITECTURES, OPTIONS, ROPE, gguf_metadata, gguf_tensors
from tests.support.tiny_models import memory_source, oracle_logits, tiny_model

IDS = random.Random(21).choices(range(128), k=24)
CHUNKS = [2, 1, 3, 10, *[1] * 8]  # borders inside the window of the convolution
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def error_of(source: WeightSource, model: Any) -> float:
    ours = Runner(source, ReferenceOps()).all_logits(IDS, CHUNKS)
    return (ours - oracle_logits(model, IDS)).abs().max().item()


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen3_5", {"linear_num_key_heads": 1, "linear_num_value_heads": 3}),
        ("qwen3_5", {"linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 2}),
        ("qwen3_5", {"linear_key_head_dim": 8, "linear_value_head_dim": 24, "linear_num_value_heads": 6}),
        ("qwen3_5", {"layer_types": ["full_attention", "linear_attention", "full_attention", "linear_attention"]}),
        ("qwen3_5", {"rope_parameters": {**OPTIONS["qwen3_5"]["rope_parameters"], **YARN}}),
        ("qwen3_5_moe", {"num_experts": 5, "num_experts_per_tok": 5, "tie_word_embeddings": True}),
        ("qwen3_next", {"norm_topk_prob": False, "linear_num_value_heads": 6}),
        ("qwen3_next", {"mlp_only_layers": [1], "rope_parameters": {**ROPE, **YARN}}),
    ],
    ids=str,
)
def test_other_numbers_equal_transformers_from_both_kinds_of_file(tmp_path, family, options):
    model = tiny_model(family, **options)
    assert error_of(memory_source(model), model) <= 1e-4
    metadata = gguf_metadata(model.config)
    kinds = options.get("layer_types")
    if kinds:
        metadata["{a}.attention.recurrent_layers"] = [kind == "linear_attention" for kind in kinds]
    if "factor" in model.config.rope_parameters:
        metadata |= {"{a}.rope.scaling.type": "yarn", "{a}.rope.scaling.factor": 4.0}
        metadata["{a}.rope.scaling.original_context_length"] = 64
    if options.get("norm_topk_prob") is False:
        metadata["{a}.expert_weights_norm"] = False
    write_gguf(tmp_path / "m.gguf", ARCHITECTURES[family], metadata, gguf_tensors(model, family))
    assert error_of(open_weights(tmp_path / "m.gguf"), model) <= 1e-4


# largest and mean distance of our logits from transformers' in bf16 (their spread is 0.5): some rows are far off, since
# rounded routers choose other experts and states of random delta nets magnify what was rounded
BF16 = {"qwen3_5": (0.6, 0.03), "qwen3_5_moe": (1.2, 0.06), "qwen3_next": (1.0, 0.05)}


@pytest.mark.parametrize("family", BF16)
def test_bf16_checkpoints_stay_within_what_bf16_loses(family, measured):
    """Ours widens the weights and computes in f32: as exact as transformers that does so, and no further than that
    one from transformers whose every activation is rounded to 8 bits."""
    model = tiny_model(family).to(torch.bfloat16)
    ours = Runner(memory_source(model), ReferenceOps()).all_logits(IDS, CHUNKS)
    low = oracle_logits(model, IDS).float()
    exact = oracle_logits(model.float(), IDS)
    row = f"{family} bf16", "safetensors", "reference"
    assert measured(*row, "transformers f32", (ours - exact).abs().max().item()) <= 1e-3
    away = (ours - low).abs()
    assert measured(*row, "transformers bf16", away.max().item()) <= BF16[family][0]
    assert measured(*row, "bf16, mean", away.mean().item()) <= BF16[family][1]
    assert away.mean() <= 1.05 * (exact - low).abs().mean()


def test_older_files_of_qwen3_next_have_the_fused_projection(tmp_path):
    model = tiny_model("qwen3_next")
    tensors = gguf_tensors(model, "qwen3_next", legacy=True)
    assert "blk.0.ssm_in.weight" in tensors and "blk.0.attn_qkv.weight" not in tensors
    write_gguf(tmp_path / "m.gguf", "qwen3next", gguf_metadata(model.config), tensors)
    assert error_of(open_weights(tmp_path / "m.gguf"), model) <= 1e-4


@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3_next"])
def test_quantised_matrices_give_the_logits_of_their_values(tmp_path, family):
    """Cutting q from its gate and the fused projections into parts keeps every block of every row."""
    model = tiny_model(family)
    architecture, metadata = ARCHITECTURES[family], gguf_metadata(model.config)
    tensors = gguf_tensors(model, family, legacy=True)
    for name in [name for name in tensors if "conv1d" in name]:  # real files leave it in F32
        assert choose_type(tensors[name], "Q8_0") == "F32"
    values = {
        name: decode(value, "Q8_0") if choose_type(value, "Q8_0") == "Q8_0" else value
        for name, value in tensors.items()
    }
    write_gguf(tmp_path / "q.gguf", architecture, metadata, tensors, types="Q8_0")
    write_gguf(tmp_path / "f.gguf", architecture, metadata, values)
    first, second = (
        Runner(open_weights(tmp_path / name), ReferenceOps()).all_logits(IDS) for name in ("q.gguf", "f.gguf")
    )
    assert (first - second).abs().max() <= 1e-5


def test_each_layer_has_the_memory_of_its_kind():
    model = load_model(memory_source(tiny_model("qwen3_5")), ReferenceOps()).model
    kinds = [type(layer) for layer in model.memory()]
    assert kinds == [StateMemory, StateMemory, StateMemory, KvMemory]
    state = model.memory()[0]
    assert state is not None and state.slot_bytes == 4 * (3 * 128 + 4 * 16 * 16)


def test_every_tensor_is_used_and_the_parameters_are_counted():
    for family in ARCHITECTURES:
        model = tiny_model(family)
        loaded = load_model(memory_source(model), ReferenceOps())
        assert loaded.notices == () and loaded.parameters == model.num_parameters()


def test_the_rows_of_q_and_gate_do_not_come_in_halves():
    """Two halves of the matrix would run as well, and be wrong."""
    model = tiny_model("qwen3_5", num_hidden_layers=1, layer_types=["full_attention"])
    state = dict(model.state_dict())
    q = state["model.layers.0.self_attn.q_proj.weight"].reshape(4, 2, 32, 64)
    loaded: Any = load_model(memory_source(model), ReferenceOps()).model
    loaded = loaded._layers[0][0]
    rows = np.ascontiguousarray(loaded.q.weight.data).view(np.float32).reshape(4, 32, 64)
    gates = np.ascontiguousarray(loaded.gate.weight.data).view(np.float32).reshape(4, 32, 64)
    assert np.array_equal(rows, q[:, 0].numpy()) and np.array_equal(gates, q[:, 1].numpy())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"linear_num_value_heads": 3}, "3 value heads are not a multiple of 2"),
        ({"layer_types": ["linear_attention"]}, "layer_types names 1 layers"),
        ({"layer_types": None, "full_attention_interval": 0}, "full_attention_interval"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        ({"output_gate_type": "gelu"}, "gelu"),
    ],
    ids=str,
)
def test_impossible_numbers_are_an_error_of_the_file(changes, said):
    source = memory_source(tiny_model("qwen3_5"), **changes)
    with pytest.raises(CorruptFile, match=said):
        find_model(source).configure(source)
