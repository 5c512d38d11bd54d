"""Quantised checkpoints in Hugging Face spelling against transformers with the values they stand for."""

from __future__ import annotations

import random

import numpy as np
import pytest

from strata_engine.errors import UsageError
from strata_engine.formats.quant import row_parts
from strata_engine.formats.quant.logical import logical_weights
from strata_engine.models.load import load_model
from strata_kernels.native import NativeOps
from strata_kernels.reference.ops import ReferenceOps
from tests.support.forward import Runner
from tests.support.quantised_tiny import SCHEMES, quantised
from tests.support.tiny_models import oracle_logits

IDS = random.Random(6).choices(range(128), k=40)
HELD = {
    "gptq": "I4_32", "gptq-desc-act": "I4_32", "gptq-8": "I8_32", "awq": "I4_32", "ct-int4": "I4_32",
    "ct-int8": "I8_128", "fp8": "F8_128", "qqq": "I4_128", "qqq-groups": "I8_128",
}  # fmt: skip


@pytest.mark.parametrize("make", [ReferenceOps, NativeOps], ids=["reference", "native"])
@pytest.mark.parametrize("name", SCHEMES)
def test_logits_equal_transformers(name, make):
    source, model = quantised("qwen3", name)
    runner = Runner(source, make())
    error = (runner.all_logits(IDS, [31, 1, 8]) - oracle_logits(model, IDS)).abs().max().item()
    assert error <= (1e-4 if make is ReferenceOps else 1e-3)


@pytest.mark.parametrize("name", SCHEMES)
def test_experts_of_every_scheme(name):
    source, model = quantised("qwen3_moe", name, num_experts=4)
    runner = Runner(source, NativeOps())
    assert (runner.all_logits(IDS, [31, 1, 8]) - oracle_logits(model, IDS)).abs().max().item() <= 1e-3


@pytest.mark.parametrize("name", SCHEMES)
def test_matrices_are_held_as_they_are_stored_not_inflated(name):
    source, _ = quantised("qwen3", name)
    packed: list[str] = []

    class Counting(NativeOps):
        def pack(self, weight):
            packed.append(weight.type)
            return super().pack(weight)

        def pack_mapped(self, weight):
            packed.append(weight.type)
            return super().pack_mapped(weight)

        def pack_pieces(self, weight_type, rows, cols, pieces):
            packed.append(weight_type)
            return super().pack_pieces(weight_type, rows, cols, pieces)

    loaded = load_model(source, Counting())
    assert set(packed) == {HELD[name], "F32"}  # F32: the head
    assert packed.count(HELD[name]) == 2 * 7
    assert loaded.notices == ()
    assert loaded.quant == source_label(name)


def source_label(name: str) -> str:
    labels = {"gptq": "GPTQ_INT4", "gptq-8": "GPTQ_INT8", "awq": "AWQ_INT4", "ct-int4": "CT_INT4", "ct-int8": "CT_INT8"}
    return {**labels, "gptq-desc-act": "GPTQ_INT4", "fp8": "FP8_E4M3"}.get(name, "QQQ_INT4")


@pytest.mark.parametrize("make", [ReferenceOps, NativeOps], ids=["reference", "native"])
def test_an_expert_whose_gate_and_up_are_sorted_apart_is_refused_by_name(make):
    source, _ = quantised("qwen3_moe", "gptq-desc-act", num_experts=2)
    groups = np.frombuffer(source.read("model.layers.1.mlp.experts.1.up_proj.g_idx"), np.int32)
    groups[:] = groups[::-1].copy()
    with pytest.raises(UsageError, match=r"layers\.1\.mlp\.experts\.1\.up_proj.*desc_act.*gate") as caught:
        load_model(source, make())
    assert caught.value.hint


@pytest.mark.parametrize("name", SCHEMES)
def test_relaid_in_pieces_is_relaid_as_a_whole(name, monkeypatch):
    source, _ = quantised("qwen3", name, intermediate_size=640)
    monkeypatch.setattr(row_parts, "_PIECE_ELEMENTS", 1)  # STEP rows at once
    found = 0
    for weight in logical_weights(source).values():
        if weight.layout is None:
            continue
        whole, pieces = weight.relaid(source), list(weight.relaid_pieces(source))
        assert {piece.type for piece in pieces} == {whole.type}
        assert len(pieces) == -(-weight.shape[0] // row_parts.STEP)
        assert np.array_equal(np.concatenate([piece.data for piece in pieces]), whole.data)
        found += len(pieces) > 1
    assert found


def test_groups_that_are_no_blocks_are_held_as_floats_and_told():
    source, model = quantised("qwen3", "gptq", intermediate_size=112)
    loaded = load_model(source, ReferenceOps())
    assert [notice.code for notice in loaded.notices] == ["held_as_f32"]
    assert "2 quantised" in loaded.notices[0].message and "down_proj" in loaded.notices[0].message
    error = (Runner(source, ReferenceOps()).all_logits(IDS) - oracle_logits(model, IDS)).abs().max().item()
    assert error <= 1e-4
