"""quantization_config: what each method's config means for a module, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.formats.quant.awq import AwqLayout
from strata_engine.formats.quant.compressed import IntLayout, PackedLayout
from strata_engine.formats.quant.config import read_config, scheme_of
from strata_engine.formats.quant.fp8 import Fp8Layout
from strata_engine.formats.quant.gptq import GptqLayout
from strata_engine.formats.quant.layout import Layout
from strata_engine.formats.quant.qqq import QqqLayout

UP = "model.layers.0.mlp.up_proj"
ATTENTION = "model.layers.0.self_attn.q_proj"


def layout(module: str = UP, **config: Any) -> Layout | None:
    return read_config(config).layout(module)


def gptq(**config: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, **config}


def compressed(weights: dict[str, Any], stored: str = "pack-quantized", **config: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": stored, "config_groups": {"group_0": group}, **config}


INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}


@pytest.mark.parametrize(("key", "stored", "less_one"), [("format", None, True), ("format", "gptq", True)]
                         + [("checkpoint_format", "gptq_v2", False), ("format", "gptq_v2", False)])  # fmt: skip
def test_gptq_zeros_depend_on_the_checkpoint_format(key, stored, less_one):
    assert layout(**gptq(**{key: stored})) == GptqLayout(4, 128, True, less_one)


def test_gptq_parameters_are_read():
    assert layout(**gptq(bits=8, group_size=-1, sym=False, desc_act=True)) == GptqLayout(8, -1, False)


def test_gptq_rules_exclude_and_change_modules_and_the_first_match_decides():
    dynamic = {
        r"-:.*attn.*": {},
        r"+:model\.layers\.0\.mlp\.up_proj": {"bits": 8, "group_size": 32, "sym": False},
        r".*up_proj": {"bits": 2},
        r"layers": {"bits": 3},  # matches from the start of a name only
    }
    scheme = read_config(gptq(dynamic=dynamic))
    assert scheme.layout(ATTENTION) is None
    assert scheme.layout(UP) == GptqLayout(8, 32, False)
    assert scheme.layout(UP.replace(".0.", ".1.")) == GptqLayout(2, 128)
    assert scheme.layout("model.layers.0.mlp.down_proj") == GptqLayout(4, 128)


@pytest.mark.parametrize("pattern", ["+:(", "a" * 600, "-:[z-a]"])
def test_bad_patterns_are_damage(pattern):
    with pytest.raises(CorruptFile, match="pattern"):
        read_config(gptq(dynamic={pattern: {}}))


def test_awq_is_read():
    assert layout(quant_method="awq", bits=4, group_size=64, version="GEMM") == AwqLayout(64)
    assert layout(quant_method="awq", w_bit=4, q_group_size=32, zero_point=False) == AwqLayout(32, False)


def test_qqq_is_read():
    assert layout(quant_method="qqq", wbits=4) == QqqLayout(-1)
    assert layout(quant_method="qqq", bits=4, group_size=128) == QqqLayout(128)


def test_fp8_is_read():
    assert layout(quant_method="fp8", fmt="e4m3", weight_block_size=[128, 64]) == Fp8Layout((128, 64))
    assert layout(quant_method="fp8") == Fp8Layout(None, "weight_scale")


@pytest.mark.parametrize(
    ("weights", "stored", "wanted"),
    [
        (INT4, "pack-quantized", PackedLayout(4, 32)),
        ({**INT4, "strategy": "channel", "group_size": None, "symmetric": False}, "pack-quantized",
         PackedLayout(4, -1, False)),
        ({"num_bits": 8, "strategy": "channel"}, "int-quantized", IntLayout(-1)),
        ({"num_bits": 8, "type": "float", "strategy": "tensor"}, "float-quantized", Fp8Layout(None, "weight_scale")),
        ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}, "float-quantized",
         Fp8Layout((128, 128), "weight_scale")),
    ],
)  # fmt: skip
def test_compressed_tensors_are_read(weights, stored, wanted):
    assert layout(**compressed(weights, stored)) == wanted


def test_compressed_tensors_groups_go_by_name_before_class_and_ignore_first():
    config = compressed(INT4, "mixed-precision", ignore=["lm_head", r"re:.*attn\.k_proj"])
    config["config_groups"]["group_0"]["format"] = "pack-quantized"
    eight = {"num_bits": 8, "type": "int", "strategy": "channel"}
    config["config_groups"]["group_1"] = {"targets": ["re:.*attn"], "weights": eight, "format": "int-quantized"}
    scheme = read_config(config)
    assert scheme.layout(UP) == PackedLayout(4, 32)
    assert scheme.layout(ATTENTION) == IntLayout(-1)
    assert scheme.layout("model.layers.0.self_attn.k_proj") is None
    assert scheme.layout("lm_head") is None


def test_modules_in_no_group_are_plain():
    config = compressed(INT4)
    config["config_groups"]["group_0"]["targets"] = [UP]
    assert read_config(config).layout(ATTENTION) is None


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        (gptq(bits=5), "5 bits"),
        (gptq(checkpoint_format="bitblas"), "bitblas"),
        (gptq(is_marlin_format=True), "marlin"),
        ({"quant_method": "awq", "version": "gemv"}, "gemv"),
        ({"quant_method": "awq", "bits": 3}, "3 bits"),
        ({"quant_method": "qqq", "group_size": 64}, "64"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "e5m2"),
        (compressed(INT4, "nvfp4-pack-quantized"), "nvfp4-pack-quantized"),
        (compressed(INT4, "marlin-24"), "marlin-24"),
        (compressed({**INT4, "strategy": "tensor_group"}), "tensor_group"),
        (compressed(INT4, sparsity_config={"format": "sparse-24-bitmask"}), "sparse-24-bitmask"),
    ],
)
def test_what_is_not_run_is_refused_by_name(config, name):
    with pytest.raises(UsageError, match=name) as caught:
        read_config(config)
    assert "GGUF" in caught.value.hint


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({}, "quant_method"),
        ({"quant_method": 4}, "quant_method"),
        (gptq(bits="4"), "bits"),
        (gptq(bits=None), "bits"),
        (gptq(group_size=True), "group_size"),
        (gptq(sym="yes"), "sym"),
        (gptq(dynamic=["-:x"]), "dynamic"),
        (gptq(dynamic={"x": 4}), "'x'"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "block size"),
        (compressed(INT4, config_groups={}), "config_groups"),
        (compressed(INT4, config_groups={"a": 1}), "config_groups"),
        (compressed(INT4, config_groups={"a": {"weights": INT4, "targets": "Linear"}}), "targets"),
        (compressed(INT4, ignore=[1]), "ignore"),
    ],
)
def test_malformed_configs_are_damage(config, name):
    with pytest.raises(CorruptFile, match=name):
        read_config(config)


def test_group_sizes_must_be_possible():
    with pytest.raises(UsageError, match="group_size is 0"):
        read_config(gptq(group_size=0))


def test_the_config_is_found_where_checkpoints_keep_it():
    wanted = GptqLayout(4, 128)
    old_gptq = {"bits": 4, "group_size": 128, "desc_act": False}
    for metadata in [
        {"config": {"quantization_config": gptq()}},
        {"config": {"model_type": "x", "text_config": {"quantization_config": gptq()}}},
        {"config": {}, "quantize_config": old_gptq},
    ]:
        scheme = scheme_of(metadata)
        assert scheme is not None
        assert scheme.layout(UP) == wanted
    old_awq = scheme_of({"config": {}, "quant_config": {"w_bit": 4, "q_group_size": 128, "version": "GEMM"}})
    assert old_awq is not None
    assert old_awq.layout(UP) == AwqLayout(128)
    older = scheme_of({"config": {"compression_config": compressed(INT4)}})
    assert older is not None
    assert older.layout(UP) == PackedLayout(4, 32)


@pytest.mark.parametrize("metadata", [{}, {"config": {}}, {"config": {"quantization_config": None, "x": {"y": 1}}}])
def test_plain_checkpoints_have_no_scheme(metadata):
    assert scheme_of(metadata) is None
