"""Bytes of models with streams, an attention index and n-gram tables; what they refuse before anything is loaded."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from strata_engine.config import EngineConfig, SpecConfig
from strata_engine.errors import UsageError
from strata_engine.formats.open import open_weights
from strata_engine.memory.layers import page_bytes, slot_bytes
from strata_engine.models.load import load_model
from strata_engine.models.planned import planned
from strata_engine.placement.estimate import Estimate, estimate
from strata_engine.placement.mixture import bytes_read, expert_bytes
from strata_kernels.reference.ops import ReferenceOps
from tests.support.engines import tiny_engine
from tests.support.published_configs import config_of
from tests.support.tiny_exp import tiny_exp, write_exp
from tests.support.tiny_models import save_tiny

CONFIG = EngineConfig(max_sequences=4, batch_rows=64, kernels="reference")
PLENTY = 8 << 30
TABLE = 4064 * 16 * 4  # rows of the tiny model's table, rounded up; elements of a row; bytes
INT8 = ("int8", "f16/int8", "int8/f16")


@pytest.fixture(scope="module", params=["safetensors", "gguf"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("exp")
    return (
        save_tiny(tiny_exp(), base / "d") if request.param == "safetensors" else write_exp(tiny_exp(), base / "m.gguf")
    )


def price(path: Path, **changes: object) -> Estimate:
    return estimate(open_weights(path), dataclasses.replace(CONFIG, **changes), PLENTY)


def test_the_table_is_on_disk_and_all_else_is_what_loading_uses(path):
    loaded = load_model(open_weights(path), ReferenceOps())
    priced = price(path)
    assert priced.disk_bytes == TABLE
    copies = 4 * (loaded.parameters - TABLE // 4)  # of the plain operations
    constants = 11 * (8 + 4) if path.is_dir() else 0  # of the hash functions, counted as any tensor
    assert priced.weights_bytes == loaded.packed_bytes + loaded.mapped_bytes + copies + constants
    assert priced.total_bytes == sum(
        (priced.weights_bytes, priced.kv_bytes, priced.state_bytes, priced.workspace_bytes)
    )


def test_index_keys_and_states_cost_what_the_memory_takes(path):
    layers = load_model(open_weights(path), ReferenceOps()).model.memory()
    for kv_type in ("f16", "f32"):
        priced = price(path, kv_type=kv_type)
        assert priced.kv_token_bytes * 32 == page_bytes(layers, 32, kv_type)
        assert priced.state_bytes == 4 * slot_bytes(layers)
    assert price(path, spec=SpecConfig("ngram", n_max=5)).state_bytes == 4 * slot_bytes(layers, 5)


def test_the_workspace_has_room_for_the_streams(path):
    priced, lower = price(path), price(path, batch_rows=32)
    row = (priced.workspace_bytes - lower.workspace_bytes) / 32
    assert row > 4 * 4 * 4 * 64  # four copies of four streams of 64 floats


def test_a_token_does_not_read_the_table(path):
    source = open_weights(path)
    stored = sum(meta.nbytes for meta in source.tensors().values())
    experts = expert_bytes(source)
    assert 0 < experts < stored
    assert bytes_read(source) == stored - TABLE - experts + experts * 2 // 8


@pytest.mark.parametrize("kv_type", INT8)
def test_keys_and_values_with_scales_are_refused_at_opening(path, kv_type):
    with pytest.raises(UsageError, match=f"does not read keys and values of type {kv_type}") as caught:
        tiny_engine(path, kv_type=kv_type)
    assert "f16, bf16, f32" in caught.value.hint and caught.value.exit_code == 2


@pytest.mark.parametrize("nested", [False, True], ids=["text only", "with images"])
def test_flash_next_is_priced_from_its_config(tmp_path, nested):
    """176.9e9 parameters, of them 51.2e9 in the table; bf16. 24 KiB and index keys a token, 108 MiB a sequence."""
    config = config_of("qwen3.8-flash-next", "bf16")
    if nested:
        outer = {"architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp"}
        config = {**outer, "text_config": {k: v for k, v in config.items() if k != "architectures"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    priced = estimate(planned(tmp_path), EngineConfig(max_sequences=1), 1 << 40)
    assert priced.disk_bytes == 2 * 160 * 320_001_536
    assert abs(priced.weights_bytes + priced.disk_bytes - 2 * 176.9e9) <= 0.01 * 2 * 176.9e9
    assert priced.kv_token_bytes == 2 * 12288 + 4 * (1536 + 1536 // 4)
    assert priced.state_bytes == 4 * (1_105_920 + 36 * 48 * 128 * 128 + 9 * 10240 + 2)
    assert priced.fits and priced.train_context_tokens == 262144
