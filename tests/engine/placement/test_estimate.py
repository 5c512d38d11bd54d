"""The estimate: from headers only, close to what is then used, and clear about what fits."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from strata_engine.config import EngineConfig, SpecConfig
from strata_engine.errors import OutOfMemory, UsageError
from strata_engine.formats.open import open_weights
from strata_engine.memory.layers import page_bytes, slot_bytes
from strata_engine.models import find_model
from strata_engine.models.load import load_model
from strata_engine.placement.estimate import KV_SHARE, estimate, require_fit
from strata_kernels.reference.ops import ReferenceOps
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_models import FAMILIES, gguf_metadata, gguf_tensors, tiny_model, write_tiny

CONFIG = EngineConfig(max_sequences=4, batch_rows=64)
PLENTY = 8 << 30


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kv_type", ["f16", "f32", "int8", "f16/int8", "int8/q4"])
def test_cache_bytes_are_those_of_the_model(checkpoints, family, kv_type):
    source = open_weights(checkpoints[family])
    priced = estimate(source, dataclasses.replace(CONFIG, kv_type=kv_type), PLENTY)
    layers = load_model(source, ReferenceOps()).model.memory()
    assert priced.state_bytes == 4 * slot_bytes(layers)
    with_drafts = estimate(source, dataclasses.replace(CONFIG, spec=SpecConfig("ngram", n_max=5)), PLENTY)
    assert with_drafts.state_bytes == 4 * slot_bytes(layers, 5)
    assert priced.kv_token_bytes * 32 == page_bytes(layers, 32, kv_type)
    assert priced.kv_bytes == priced.pool_tokens * priced.kv_token_bytes
    assert priced.train_context_tokens == find_model(source).configure(source).train_context_tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_and_directory_of_one_model_cost_the_same(checkpoints, tmp_path, family):
    model = tiny_model(family)
    write_tiny(model, family, tmp_path / "m.gguf")
    first, second = (estimate(open_weights(p), CONFIG, PLENTY) for p in (checkpoints[family], tmp_path / "m.gguf"))
    assert first == second


def test_weights_are_what_loading_uses(checkpoints):
    source = open_weights(checkpoints["qwen3"])
    loaded = load_model(source, ReferenceOps())
    assert estimate(source, CONFIG, PLENTY).weights_bytes == loaded.packed_bytes + loaded.mapped_bytes


def test_with_plenty_of_memory_the_context_is_the_models_own(checkpoints):
    priced = estimate(open_weights(checkpoints["llama"]), CONFIG, PLENTY)
    assert (priced.context_tokens, priced.pool_tokens) == (256, 4 * 256)
    assert priced.fits and "own limit" in priced.context_why


def test_little_memory_lowers_the_context_and_says_why(checkpoints):
    source = open_weights(checkpoints["llama"])
    base = estimate(source, CONFIG, PLENTY)
    needed = base.weights_bytes + base.workspace_bytes
    priced = estimate(source, CONFIG, needed + 128 * base.kv_token_bytes)
    assert priced.context_tokens == 128
    assert "256" in priced.context_why
    assert priced.fits


def test_the_cache_takes_a_share_of_free_memory_by_itself(checkpoints):
    source = open_weights(checkpoints["llama"])
    base = estimate(source, CONFIG, PLENTY)
    free = int(500 * base.kv_token_bytes / KV_SHARE)
    priced = estimate(source, CONFIG, free)
    assert priced.context_tokens <= priced.pool_tokens <= 500


def test_an_asked_for_context_that_does_not_fit_is_refused_with_the_largest_that_does(checkpoints):
    source = open_weights(checkpoints["llama"])
    base = estimate(source, CONFIG, PLENTY)
    free = base.weights_bytes + base.workspace_bytes + 100 * base.kv_token_bytes
    priced = estimate(source, dataclasses.replace(CONFIG, context_tokens=200), free)
    with pytest.raises(OutOfMemory, match="for 200 tokens") as caught:
        require_fit(priced)
    assert caught.value.details["largest_context_tokens"] == 96
    assert "--ctx 96" in caught.value.hint
    require_fit(estimate(source, dataclasses.replace(CONFIG, context_tokens=96), free))


def test_weights_larger_than_memory_do_not_fit(checkpoints):
    with pytest.raises(OutOfMemory, match="smaller model|free"):
        require_fit(estimate(open_weights(checkpoints["llama"]), CONFIG, 1000))


def test_a_context_beyond_the_models_own_is_lowered_to_it(checkpoints):
    priced = estimate(open_weights(checkpoints["llama"]), dataclasses.replace(CONFIG, context_tokens=999), PLENTY)
    assert priced.context_tokens == 256
    assert "999" in priced.context_why and "256" in priced.context_why


def test_an_unknown_cache_type_is_refused(checkpoints):
    with pytest.raises(UsageError, match="q9"):
        estimate(open_weights(checkpoints["llama"]), dataclasses.replace(CONFIG, kv_type="q9"), PLENTY)


def test_estimating_imports_neither_torch_nor_numpy():
    code = "import strata_engine.placement.estimate, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_resident_memory_grows_by_about_the_estimate(tmp_path):
    """A model of some 50 MB in a process of its own, every page of the cache written."""
    model = tiny_model("llama", hidden_size=512, intermediate_size=2048, num_hidden_layers=3, vocab_size=2000)
    write_gguf(tmp_path / "m.gguf", "llama", gguf_metadata(model), gguf_tensors(model, "llama"))
    out = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path / "m.gguf")], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    grown, priced = map(int, out.stdout.split())
    assert 0.6 * priced < grown < 1.4 * priced


MEASURE = """
import sys
from pathlib import Path
import psutil
import torch
from strata_engine.config import EngineConfig
from strata_engine.core.batch import BatchLimits, Span
from strata_engine.core.sequence import Hold
from strata_engine.formats.open import open_weights
from strata_engine.memory.memory import Memory
from strata_engine.models.load import load_model
from strata_engine.placement.estimate import estimate
from strata_engine.runtime.executor import Executor
from strata_kernels.reference.ops import ReferenceOps

torch.set_num_threads(1)
source = open_weights(Path(sys.argv[1]))
config = EngineConfig(kv_type="f32", max_sequences=16, batch_rows=256)
priced = estimate(source, config, 8 << 30)
before = psutil.Process().memory_info().rss
ops = ReferenceOps(cache_dequantised=False)
model = load_model(source, ops).model
memory = Memory(model.memory(), priced.pool_tokens // 32, 32, "f32")
for cache in memory.caches:
    cache.keys[:] = cache.values[:] = 0.5
executor = Executor(model, ops, memory, BatchLimits(256, 16, 256, 16))
hold = Hold()
memory.reserve(hold, 256)
executor.run([Span([1] * 256, 0, hold.pages, 1)])
print(psutil.Process().memory_info().rss - before, priced.total_bytes)
"""
