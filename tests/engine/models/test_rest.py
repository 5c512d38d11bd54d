"""--quantize-rest: which matrices change, how far their values move, and that this is what is reported."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from strata_engine.config import EngineConfig
from strata_engine.models.load import load_model
from strata_engine.models.rest import Rest
from strata_engine.placement.estimate import estimate
from strata_kernels.native import NativeOps
from strata_kernels.ops import Weight
from strata_kernels.reference.dense import dequantise
from strata_kernels.reference.ops import ReferenceOps
from tests.support.forward import Runner
from tests.support.quantised_tiny import quantised
from tests.support.tiny_models import memory_source, oracle_logits, tiny_model

SIZES = {"hidden_size": 128, "intermediate_size": 192}


def weight(rows: int = 160, cols: int = 96, kind: str = "BF16") -> Weight:
    values = torch.randn(rows, cols, generator=torch.Generator().manual_seed(3)) * 0.05
    values[1] = 0
    dtype = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[kind]
    return Weight(kind, rows, cols, values.to(dtype).view(torch.uint8).numpy())


@pytest.mark.parametrize("kind", ["BF16", "F16", "F32"])
@pytest.mark.parametrize(("choice", "made", "most"), [("int8", "Q8_0", 0.01), ("int4", "Q4_1", 0.1)])
def test_the_error_told_is_the_error_made(kind, choice, made, most):
    rest, before = Rest(choice), weight(kind=kind)
    after = rest.apply("3.up", before)
    assert after.type == made
    values, error = dequantise(before), dequantise(after) - dequantise(before)
    assert rest.kinds["up"].rms == pytest.approx(float(error.norm() / values.norm()), rel=1e-4)
    assert 0 < rest.kinds["up"].rms < most
    assert rest.kinds["up"].bytes_after == after.data.nbytes < before.data.nbytes == rest.kinds["up"].bytes_before
    assert rest.summary().startswith("up 0." if choice == "int8" else "up ")


@pytest.mark.parametrize(
    ("name", "stored"), [("0.router", weight()), ("0.beta", weight(32)), ("0.up", weight(160, 40))]
)
def test_what_decides_much_or_costs_little_is_left_alone(name, stored):
    rest = Rest("int4")
    assert rest.apply(name, stored) is stored
    assert rest.kinds == {} and "nothing" in rest.summary()


def test_heads_keep_8_bits():
    assert Rest("int4").apply("head", weight()).type == "Q8_0"
    assert Rest("none").apply("1.up", weight()).type == "BF16"


def test_experts_of_a_kind_are_summed_up_and_quantised_matrices_stay():
    rest = Rest("int8")
    for expert in range(3):
        rest.apply(f"0.expert.{expert}.gate", weight())
    assert list(rest.kinds) == ["gate"] and rest.kinds["gate"].bytes_before == 3 * weight().data.nbytes
    stored = Weight("Q4_0", 160, 96, np.zeros((160, 54), np.uint8))
    assert rest.apply("0.up", stored) is stored


@pytest.mark.parametrize("make", [ReferenceOps, NativeOps], ids=["reference", "native"])
def test_a_model_runs_with_it_and_stays_near(make):
    model = tiny_model("qwen3", **SIZES)
    ids = list(range(2, 40))
    runner = Runner(memory_source(model), make(), rest="int8")
    assert set(runner.loaded.rest.kinds) == {"q", "o", "gate", "up", "down", "head"}  # k and v have 64 rows
    difference = runner.all_logits(ids) - oracle_logits(model, ids)
    assert 1e-4 < difference.abs().max() < 0.1


def test_the_estimate_is_what_loading_takes():
    source, _ = quantised("qwen3_moe", "gptq", num_experts=4)
    for rest in ("none", "int8", "int4"):
        loaded = load_model(source, NativeOps(), rest=rest)
        priced = estimate(source, EngineConfig(quantize_rest=rest), 1 << 33)
        held = loaded.packed_bytes + loaded.mapped_bytes
        assert abs(priced.weights_bytes - held) <= 0.02 * held
