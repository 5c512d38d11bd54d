"""Mixtures of experts: every way a checkpoint stores them, dense layers between, unusual numbers, and refusals."""

from __future__ import annotations

import random

import pytest
import torch

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.formats.base import WeightSource
from strata_engine.formats.open import open_weights
from strata_engine.models import find_model
from strata_engine.models.load import load_model
from strata_engine.placement.mixture import bytes_read, expert_bytes
from strata_kernels.binding import KernelsUnavailable
from strata_kernels.native import NativeOps
from strata_kernels.ops import Ops
from strata_kernels.reference.ops import ReferenceOps
from tests.support.forward import Runner
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_models import (
    MemorySource,
    gguf_metadata,
    gguf_tensors,
    memory_source,
    oracle_logits,
    save_tiny,
    tiny_model,
    write_tiny,
)

IDS = random.Random(11).choices(range(128), k=50)
CHUNKS = [1, 17, 20, *[1] * 12]


@pytest.fixture(params=["reference", "native"])
def ops(request: pytest.FixtureRequest) -> Ops:
    if request.param == "reference":
        return ReferenceOps()
    try:
        return NativeOps(threads=2)
    except KernelsUnavailable as reason:
        pytest.skip(f"no native kernels here: {reason}")


def error_of(source: WeightSource, model, ops: Ops) -> float:
    return (Runner(source, ops).all_logits(IDS, CHUNKS) - oracle_logits(model, IDS)).abs().max().item()


def test_a_tensor_for_each_expert_equals_transformers(ops, tmp_path):
    model = tiny_model("qwen3_moe")
    source = open_weights(save_tiny(model, tmp_path))
    assert "model.layers.1.mlp.experts.7.down_proj.weight" in source.tensors()
    assert error_of(source, model, ops) <= 1e-3


def test_fused_tensors_of_a_checkpoint_equal_transformers(ops):
    model = tiny_model("qwen3_moe")
    source = memory_source(model)
    assert "model.layers.0.mlp.experts.gate_up_proj" in source.tensors()
    assert error_of(source, model, ops) <= 1e-3


@pytest.mark.parametrize("fused", [False, True])
def test_stacked_tensors_of_a_gguf_file_equal_transformers(ops, tmp_path, fused):
    model = tiny_model("qwen3_moe")
    tensors = gguf_tensors(model, "qwen3_moe", fused)
    assert ("blk.0.ffn_gate_up_exps.weight" in tensors) == fused
    write_gguf(tmp_path / "m.gguf", "qwen3moe", gguf_metadata(model), tensors)
    assert error_of(open_weights(tmp_path / "m.gguf"), model, ops) <= 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {"norm_topk_prob": False},
        {"num_experts": 5, "num_experts_per_tok": 5},
        {"num_experts": 13, "num_experts_per_tok": 3, "moe_intermediate_size": 40},
        {"num_experts": 3, "num_experts_per_tok": 1},
        {"num_hidden_layers": 4, "mlp_only_layers": [1]},
        {"num_hidden_layers": 4, "decoder_sparse_step": 2},
        {"num_experts": 0},
    ],
    ids=str,
)
def test_other_numbers_equal_transformers(ops, options):
    model = tiny_model("qwen3_moe", **options)
    assert error_of(memory_source(model), model, ops) <= 1e-3


def test_dense_layers_of_a_gguf_file_are_found_by_their_tensors(ops, tmp_path):
    model = tiny_model("qwen3_moe", num_hidden_layers=3, mlp_only_layers=[0, 2])
    source = open_weights(write_tiny(model, "qwen3_moe", tmp_path / "m.gguf"))
    assert error_of(source, model, ops) <= 1e-3


def test_the_parameters_are_counted(tmp_path):
    model = tiny_model("qwen3_moe")
    assert load_model(memory_source(model), ReferenceOps()).parameters == model.num_parameters()


def test_a_missing_expert_is_named():
    model = tiny_model("qwen3_moe")
    source = memory_source(model)
    gone = "model.layers.1.mlp.experts.down_proj"
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name != gone}
    with pytest.raises(CorruptFile, match=gone):
        load_model(MemorySource(tensors, source.metadata()["config"]), ReferenceOps())


def test_a_wrong_number_of_experts_is_told_with_both_shapes():
    with pytest.raises(CorruptFile, match=r"mlp.gate.weight has shape \[8, 64\], expected \[9, 64\]"):
        load_model(memory_source(tiny_model("qwen3_moe"), num_local_experts=9), ReferenceOps())


def test_more_experts_a_token_than_there_are_is_refused():
    source = memory_source(tiny_model("qwen3_moe"), num_experts_per_tok=9)
    with pytest.raises(CorruptFile, match="9 experts a token, but there are only 8"):
        find_model(source).configure(source)


def test_experts_in_a_dense_architecture_are_refused(tmp_path):
    model = tiny_model("qwen3_moe")
    write_gguf(tmp_path / "m.gguf", "qwen3", gguf_metadata(model), gguf_tensors(model, "qwen3_moe"))
    with pytest.raises(UsageError, match="qwen3 with experts"):
        load_model(open_weights(tmp_path / "m.gguf"), ReferenceOps())


def test_a_token_reads_only_the_experts_that_work_on_it(tmp_path):
    model = tiny_model("qwen3_moe")
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name) * 4
    for path in (save_tiny(model, tmp_path / "d"), write_tiny(model, "qwen3_moe", tmp_path / "m.gguf")):
        source = open_weights(path)
        stored = sum(meta.nbytes for meta in source.tensors().values())
        assert expert_bytes(source) == experts
        assert bytes_read(source) == stored - experts + experts * 2 // 8


def test_packed_experts_take_no_more_memory_than_their_groups(tmp_path):
    try:
        ops = NativeOps(threads=1)
    except KernelsUnavailable as reason:
        pytest.skip(f"no native kernels here: {reason}")
    model = tiny_model("qwen3_moe", num_experts=16)  # all matrices have whole groups of 16 rows
    loaded = load_model(open_weights(write_tiny(model, "qwen3_moe", tmp_path / "m.gguf", "Q8_0")), ops)
    stored = open_weights(tmp_path / "m.gguf").tensors().values()
    assert loaded.packed_bytes + loaded.mapped_bytes == sum(meta.nbytes for meta in stored)


def test_the_bits_do_not_depend_on_the_kernels_activation_tile():
    """One row alone takes another way through the experts than many: the same bits all the same."""
    try:
        ops = NativeOps(threads=2, activation_bits=8)
    except KernelsUnavailable as reason:
        pytest.skip(f"no native kernels here: {reason}")
    runner = Runner(memory_source(tiny_model("qwen3_moe")), ops)
    assert torch.equal(runner.all_logits(IDS), runner.all_logits(IDS, [1] * len(IDS)))
