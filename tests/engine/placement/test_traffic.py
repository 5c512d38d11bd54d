"""Bytes of a token: from the toy's headers, and of catalog models against the table and against known figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata_engine.config import EngineConfig
from strata_engine.formats.open import open_weights
from strata_engine.placement.catalog_traffic import catalog_traffic
from strata_engine.placement.traffic import Traffic, traffic
from strata_engine.registry.catalog import load_catalog
from tests.support.catalog_files import FLASH, MADE, traffic_of
from tests.support.tiny_gguf import write_gguf

TOY = Path(__file__).resolve().parents[2] / "fixtures/toy"
# a small one of each kind by default: dense with a tower, experts, all linear layers
QUICK = {("qwen3-vl", "gptq-int4"), ("qwen3", "gptq-int4"), ("qwen3.5-fq", "int4")}
KEYS = [pytest.param(key, marks=() if key in QUICK else pytest.mark.slow, id=":".join(key)) for key in MADE]


@pytest.mark.parametrize("key", KEYS)
def test_the_table_has_what_the_config_or_header_says(tmp_path, key):
    # after a wanted change: python -m tests.support.catalog_files
    assert catalog_traffic()[":".join(key)] == traffic_of(key, tmp_path)


def test_every_catalog_variant_has_a_line():
    variants = {f"{entry.name}:{v.name}" for entry in load_catalog().entries.values() for v in entry.variants}
    assert set(catalog_traffic()) == variants


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("qwen3:gptq-int4", 2.06),
        ("qwen3.5:gptq-int4", 4.53),
        ("qwen3.5-fq:int4", 2.44),
        ("qwen3-vl:gptq-int4", 4.85),
        ("qwen3.8-27b:w4a16", 15.5),
    ],
)
def test_bytes_of_a_token_are_those_worked_out_by_hand(name, gigabytes):
    # serving_bench.md 8.1: without keys and values
    assert catalog_traffic()[name].token_bytes(0) == pytest.approx(gigabytes * 1e9, rel=0.01)


def test_the_weights_of_the_default_model_are_its_file_but_for_the_header():
    entry = load_catalog().find("smollm2")
    assert entry is not None
    assert catalog_traffic()["smollm2:q4_1"].stored_bytes == pytest.approx(entry.variants[0].weights_bytes, rel=0.02)


def test_an_indexed_model_reads_no_more_keys_than_it_chooses():
    model = catalog_traffic()[f"{FLASH}:iq3_s"]
    assert model.attended == 2051
    more = model.kv_bytes(100_000) - model.kv_bytes(50_000)
    assert more == 50_000 * model.index_token_bytes < 50_000 * model.kv_token_bytes // 10


def test_of_experts_only_those_used_are_read():
    model = Traffic(100, 10, 640, (2, 64), 4, 5, 3)
    assert model.used_bytes == 20 and model.stored_bytes == 750
    assert model.token_bytes(7) == 100 + 10 + 20 + 2 * 5 + 3 * 7


def test_a_toy_with_experts_and_states_is_read_from_its_files():
    source = open_weights(TOY)
    try:
        model = traffic(source, EngineConfig())
    finally:
        source.close()
    config = json.loads((TOY / "config.json").read_text())
    text = config.get("text_config", config)
    assert model.layers == text["num_hidden_layers"]
    assert model.experts == (text["num_experts_per_tok"], text["num_experts"])
    assert model.expert_bytes > model.used_bytes > 0 and model.state_bytes > 0


def test_a_tied_embedding_is_read_as_the_head(tmp_path):
    import numpy as np

    shapes = {"token_embd.weight": (64, 32), "output_norm.weight": (32,), "blk.0.attn_q.weight": (32, 32),
              "blk.0.attn_k.weight": (16, 32), "blk.0.attn_v.weight": (16, 32)}  # fmt: skip
    tensors = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    metadata = {"{a}.context_length": 512, "{a}.block_count": 1}
    source = open_weights(write_gguf(tmp_path / "m.gguf", "llama", metadata, tensors)[0])
    try:
        model = traffic(source, EngineConfig(kv_type="f16"))
    finally:
        source.close()
    assert (model.head_bytes, model.dense_bytes) == (4 * 64 * 32, 4 * (32 + 64 * 32))
    assert (model.layers, model.kv_token_bytes, model.experts) == (1, 2 * 32, (0, 0))
