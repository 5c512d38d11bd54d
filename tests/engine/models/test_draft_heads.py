"""Draft heads against transformers' MtpModel, from both kinds of file, in chunks, and fed with their own output."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.cache_utils import MtpCache

from strata_engine.config import SpecConfig
from strata_engine.core.batch import BatchBuffers, BatchLimits, Span
from strata_engine.core.sequence import Hold
from strata_engine.formats.base import WeightSource
from strata_engine.formats.open import open_weights
from strata_engine.memory.layers import page_bytes
from strata_engine.memory.memory import Memory
from strata_engine.models.load import load_model
from strata_engine.models.mtp import DraftHead, load_draft
from strata_engine.placement.estimate import EngineConfig, estimate
from strata_engine.placement.states import is_draft
from strata_kernels.reference.ops import ReferenceOps
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_hybrid import ARCHITECTURES, draft_head, gguf_metadata, gguf_tensors
from tests.support.tiny_models import MemorySource, memory_source, save_tiny, tiny_model

IDS = random.Random(9).choices(range(128), k=30)


class Case:
    """A tiny model with a draft head, and what transformers makes of IDS."""

    def __init__(self, family: str) -> None:
        self.family, self.model = family, tiny_model(family)
        head, self.tensors = draft_head(self.model)
        cache = MtpCache(config=self.model.config.get_mtp_config())
        with torch.no_grad():
            ids = torch.tensor([IDS])
            self.hidden = self.model.model(ids).last_hidden_state
            positions = torch.arange(len(IDS) - 1)[None]
            states = head.forward_layer(0, self.hidden[:, :-1], positions, cache, input_ids=ids[:, 1:])
            self.states, self.logits = states[0], self.model.lm_head(states)[0]
            again = head.forward_layer(0, states[:, -1:], positions[:, -1:] + 1, cache, input_ids=ids[:, :1])
            self.again = again[0, 0]

    def source(self, kind: str, directory: Path) -> WeightSource:
        if kind == "safetensors":
            plain = memory_source(self.model)
            own = {name: tensor for name, tensor in self.model.state_dict().items() if name in plain.tensors()}
            return MemorySource({**own, **self.tensors}, plain.metadata()["config"])
        config = self.model.config
        metadata = gguf_metadata(config) | {
            "{a}.block_count": config.num_hidden_layers + 1,
            "{a}.nextn_predict_layers": 1,
        }
        tensors = gguf_tensors(self.model, self.family, draft=self.tensors)
        write_gguf(directory / "m.gguf", ARCHITECTURES[self.family], metadata, tensors)
        return open_weights(directory / "m.gguf")


@pytest.fixture(scope="module", params=["qwen3_5", "qwen3_5_moe", "qwen3_next"])
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def draft(head: DraftHead, ops: ReferenceOps, hidden: np.ndarray, ids: list[int], memory: Memory, hold: Hold):
    """States [n, W] of the next rows of a sequence."""
    assert memory.reserve(hold, len(ids))
    buffers = BatchBuffers(BatchLimits(64, 1, 128, 1), memory.caches, memory.page_tokens, ops)
    rows, _ = buffers.fill([Span(ids, hold.tokens, hold.pages)])
    batch = buffers.view(rows, 0)
    with ops.scope():
        states = head.forward(batch.ids, hidden, memory.caches[0], batch.rows, ops).copy()
    memory.commit(hold, len(ids))
    return states


@pytest.mark.parametrize("chunks", [[29], [1, 9, 19], [1] * 29], ids=["at once", "in chunks", "one by one"])
@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_states_and_logits_equal_transformers(case, tmp_path, kind, chunks):
    ops, source = ReferenceOps(), case.source(kind, tmp_path)
    loaded = load_model(source, ops)
    assert loaded.notices == ()  # its tensors are known, and not needed for plain generation
    head = load_draft(source, loaded.model, ops)
    assert head is not None
    memory, hold, parts = Memory([head.memory()], 8, 16, "f32"), Hold(), []
    hidden, start = case.hidden[0].numpy().copy(), 0
    for size in chunks:
        end = start + size
        parts.append(draft(head, ops, hidden[start:end].copy(), IDS[start + 1 : end + 1], memory, hold))
        start = end
    states = np.concatenate(parts)
    assert np.abs(states - case.states.numpy()).max() <= 1e-4
    logits = np.empty((len(states), 128), np.float32)
    head.logits(states, ops, logits)
    assert np.abs(logits - case.logits.numpy()).max() <= 1e-4
    again = draft(head, ops, states[-1:].copy(), IDS[:1], memory, hold)
    assert np.abs(again[0] - case.again.numpy()).max() <= 1e-4


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_plain_loading_and_the_estimate_leave_the_draft_head_out(case, tmp_path, kind):
    source, config = case.source(kind, tmp_path), EngineConfig(max_sequences=2, batch_rows=64)
    without = memory_source(case.model)
    assert load_model(source, ReferenceOps()).parameters == load_model(without, ReferenceOps()).parameters
    priced, plain = estimate(source, config, 8 << 30), estimate(without, config, 8 << 30)
    assert priced == plain


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
@pytest.mark.parametrize("kv_type", ["f16", "int8"])
def test_the_estimate_counts_the_head_that_is_asked_for(case, tmp_path, kind, kv_type):
    source, config = case.source(kind, tmp_path), EngineConfig(max_sequences=2, batch_rows=64, kv_type=kv_type)
    priced, plain = (estimate(source, replace(config, spec=SpecConfig(m)), 8 << 30) for m in ("mtp", "none"))
    ops = ReferenceOps()
    model = load_model(source, ops).model
    head = load_draft(source, model, ops)
    assert head is not None
    assert priced.kv_token_bytes == page_bytes([*model.memory(), head.memory()], 1, kv_type)
    stored = [meta.nbytes for name, meta in source.tensors().items() if is_draft(source, name)]
    assert priced.drafter_bytes == sum(stored) == priced.weights_bytes - plain.weights_bytes > 0


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_the_estimate_counts_a_small_model_that_drafts(family, tmp_path):
    path, other = save_tiny(tiny_model("qwen3"), tmp_path / "small"), tiny_model(family)
    config = EngineConfig(max_sequences=2, batch_rows=64, spec=SpecConfig("draft", str(path)))
    plain = estimate(memory_source(other), replace(config, spec=SpecConfig()), 8 << 30)
    priced = estimate(memory_source(other), config, 8 << 30)
    layers = load_model(open_weights(path), ReferenceOps()).model.memory()
    assert priced.kv_token_bytes == plain.kv_token_bytes + page_bytes(layers, 1, config.kv_type)
    assert 0 < priced.drafter_bytes < (path / "model.safetensors").stat().st_size
    gone = replace(config, spec=SpecConfig("draft", str(tmp_path / "nothing")))
    assert estimate(memory_source(other), gone, 8 << 30).drafter_bytes == 0


def test_a_checkpoint_without_a_draft_head_gives_none():
    source = memory_source(tiny_model("qwen3_5"), mtp_num_hidden_layers=1)
    loaded = load_model(source, ReferenceOps())
    assert load_draft(source, loaded.model, ReferenceOps()) is None
