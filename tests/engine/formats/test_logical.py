"""Logical weights: tensors of quantised modules become one matrix each; what does not fit is named before reading."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.formats.base import WeightSource
from strata_engine.formats.open import open_weights
from strata_engine.formats.quant.logical import logical_weights
from tests.support import packed_weights as writers
from tests.support.tiny_gguf import decode, write_gguf

UP, NORM = "model.layers.0.mlp.up_proj", "model.norm.weight"
Checkpoint = Callable[..., WeightSource]
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Writes a checkpoint directory and opens it."""

    def write(tensors: dict[str, Tensor], quantization: dict[str, Any] | None, **files: Any) -> WeightSource:
        safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
        config = {"model_type": "x"} | ({"quantization_config": quantization} if quantization else {})
        for name, content in {"config": config, **files}.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return open_weights(tmp_path)

    return write


def with_norm(parts: dict[str, Tensor], module: str = UP) -> dict[str, Tensor]:
    return {**writers.named(module, parts), NORM: torch.ones(96), f"{module}.bias": torch.zeros(32)}


MATRIX = writers.random_codes(1, 32, 96, 32)
INT4 = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32}
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4}},
    "ignore": ["lm_head"],
}


@pytest.mark.parametrize(
    ("parts", "quantization", "label"),
    [
        (writers.gptq(MATRIX), GPTQ, "GPTQ_INT4"),
        (writers.awq(MATRIX), {"quant_method": "awq", "group_size": 32}, "AWQ_INT4"),
        (writers.packed(MATRIX, False), PACKED, "CT_INT4"),
    ],
    ids=["gptq", "awq", "packed"],
)
def test_parts_become_one_matrix_and_the_rest_stays(checkpoint, parts, quantization, label):
    source = checkpoint(with_norm(parts), quantization)
    weights = logical_weights(source)
    assert sorted(weights) == sorted([f"{UP}.weight", f"{UP}.bias", NORM])
    weight = weights[f"{UP}.weight"]
    assert (weight.shape, weight.type) == ((32, 96), label)
    assert weight.nbytes == sum(part.nbytes for part in parts.values())
    assert torch.equal(weight.unpack(source), MATRIX.values())
    assert (weights[NORM].type, weights[NORM].layout) == ("F32", None)
    assert torch.equal(weights[NORM].unpack(source), torch.ones(96))
    source.close()


def test_qqq_and_fp8_are_grouped_too(checkpoint):
    codes = np.random.default_rng(0).integers(0, 16, (64, 128))
    parts = writers.qqq(codes, np.ones(64, np.float32), None)
    source = checkpoint(with_norm(parts), {"quant_method": "qqq", "wbits": 4, "group_size": -1})
    weight = logical_weights(source)[f"{UP}.weight"]
    assert (weight.shape, weight.type) == ((64, 128), "QQQ_INT4")
    assert np.array_equal(weight.unpack(source).numpy(), np.where(codes < 8, codes, codes - 16) * 16)
    source.close()


def test_plain_weights_of_a_quantised_checkpoint_stay_plain(checkpoint):
    eighths = torch.randn(130, 140).to(torch.float8_e4m3fn)
    tensors = {
        f"{UP}.weight": eighths,
        f"{UP}.weight_scale_inv": torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16),
        "lm_head.weight": torch.randn(4, 8).to(torch.bfloat16),
    }
    source = checkpoint(tensors, {"quant_method": "fp8", "weight_block_size": [128, 128]})
    weights = logical_weights(source)
    assert {name: weight.type for name, weight in weights.items()} == {
        f"{UP}.weight": "FP8_E4M3",
        "lm_head.weight": "BF16",
    }
    values = weights[f"{UP}.weight"].unpack(source)
    assert torch.equal(values[:128, :128], eighths[:128, :128].float())
    assert torch.equal(values[128:, 128:], eighths[128:, 128:].float() * 4)
    assert torch.equal(weights["lm_head.weight"].unpack(source), tensors["lm_head.weight"].float())
    source.close()


def test_static_input_scales_belong_to_the_module(checkpoint):
    tensors = {
        f"{UP}.weight": torch.ones(4, 8, dtype=torch.int8),
        f"{UP}.weight_scale": torch.ones(4, 1),
        f"{UP}.input_scale": torch.ones(1),
    }
    eight = {"num_bits": 8, "type": "int", "strategy": "channel"}
    group = {"targets": ["Linear"], "weights": eight, "input_activations": {"num_bits": 8}}
    config = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"g": group}}
    source = checkpoint(tensors, config)
    assert list(logical_weights(source)) == [f"{UP}.weight"]
    source.close()


def test_an_old_side_file_describes_the_quantisation(checkpoint):
    source = checkpoint(with_norm(writers.gptq(MATRIX)), None, quantize_config={"bits": 4, "group_size": 32})
    assert logical_weights(source)[f"{UP}.weight"].type == "GPTQ_INT4"
    source.close()


def test_gguf_tensors_stand_for_themselves(tmp_path):
    array = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    write_gguf(tmp_path / "m.gguf", "llama", {}, {"blk.0.ffn_up.weight": array}, "Q4_K")
    source = open_weights(tmp_path / "m.gguf")
    weight = logical_weights(source)["blk.0.ffn_up.weight"]
    assert (weight.shape, weight.type, weight.nbytes) == ((4, 256), "Q4_K", 576)
    assert np.array_equal(weight.unpack(source).numpy(), decode(array, "Q4_K"))
    source.close()


def refused(source: WeightSource, *words: str) -> None:
    with pytest.raises(CorruptFile) as caught:
        logical_weights(source)
    for word in (UP, "model.safetensors", *words):
        assert word in str(caught.value)
    source.close()


@pytest.mark.parametrize("missing", ["qweight", "scales", "qzeros"])
def test_a_missing_part_is_named(checkpoint, missing):
    parts = writers.gptq(MATRIX)
    del parts[missing]
    refused(checkpoint(with_norm(parts), GPTQ), f"needs {missing}")


def test_a_part_of_another_dtype_is_named(checkpoint):
    parts = writers.gptq(MATRIX)
    parts["scales"] = parts["scales"].double()
    refused(checkpoint(with_norm(parts), GPTQ), "scales is stored as F64")


def test_a_group_size_that_the_tensors_contradict_is_named(checkpoint):
    refused(checkpoint(with_norm(writers.gptq(MATRIX)), {**GPTQ, "group_size": 64}), "scales has shape [3, 32]")


def test_quantised_tensors_of_an_excluded_module_are_refused(checkpoint):
    refused(checkpoint(with_norm(writers.gptq(MATRIX)), {**GPTQ, "dynamic": {"-:.*mlp": {}}}), "qweight", "excludes")


def test_a_matrix_stored_twice_is_refused(checkpoint):
    tensors = with_norm(writers.gptq(MATRIX)) | {f"{UP}.weight": torch.ones(32, 96)}
    refused(checkpoint(tensors, GPTQ), "both plain and quantised")


@pytest.mark.parametrize("stated", [[32, 90, 1], [32, -96], [31, 96], [32, 400]])
def test_a_wrong_stated_shape_is_refused(checkpoint, stated):
    parts = writers.packed(MATRIX, False) | {"weight_shape": torch.tensor(stated)}
    refused(checkpoint(with_norm(parts), PACKED))


def test_impossible_group_numbers_are_found_on_reading(checkpoint):
    parts = writers.gptq(MATRIX) | {"g_idx": torch.full((96,), 9, dtype=torch.int32)}
    source = checkpoint(with_norm(parts), GPTQ)
    weight = logical_weights(source)[f"{UP}.weight"]
    with pytest.raises(CorruptFile, match=r"up_proj.*group numbers are 9\.\.9"):
        weight.unpack(source)
    source.close()


def test_an_unknown_method_is_refused_by_name(checkpoint):
    source = checkpoint({NORM: torch.ones(4)}, {"quant_method": "hqq"})
    with pytest.raises(UsageError, match="'hqq'"):
        logical_weights(source)
    source.close()


def test_a_plain_type_that_cannot_be_run_is_refused_by_name(checkpoint):
    source = checkpoint({"x.weight": torch.ones(4, 4).to(torch.float8_e5m2)}, None)
    with pytest.raises(UsageError, match="F8_E5M2"):
        logical_weights(source)["x.weight"].unpack(source)
    source.close()
