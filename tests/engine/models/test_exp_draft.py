"""The draft head of qwen4_exp. transformers drops its tensors, so the reference is made of its parts after the notes:
its layer and mixer, fed with fc_hidden(norm(streams)) + fc_embedding(norm(embedding))."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from strata_engine.core.batch import BatchBuffers, BatchLimits, Span
from strata_engine.core.sequence import Hold
from strata_engine.formats.open import open_weights
from strata_engine.memory.memory import Memory
from strata_engine.models.exp_draft import StreamDraft, load_stream_draft
from strata_engine.models.load import load_model
from strata_engine.models.qwen4_exp import Qwen4Exp
from strata_engine.placement.estimate import EngineConfig, estimate
from strata_kernels.ops import Ops
from strata_kernels.reference.ops import ReferenceOps
from tests.support.tiny_exp import tiny_exp, write_exp
from tests.support.tiny_models import MemorySource, memory_source

IDS = random.Random(9).choices(range(128), k=30)


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1 + weight)


class Case:
    """A tiny model with a draft head, and what the reference makes of IDS."""

    def __init__(self) -> None:
        self.model = tiny_exp()
        self.part = tiny_exp(seed=7, num_hidden_layers=1, layer_types=["indexed_attention"], ple_layer_ids=[])
        width, streams = self.model.config.hidden_size, self.model.config.hc_count
        draw = torch.Generator().manual_seed(3)
        sizes = {"fc_embedding": (width, width), "fc_hidden": (width, width),
                 "pre_fc_norm_embedding": (width,), "pre_fc_norm_hidden": (streams * width,)}  # fmt: skip
        self.own = {name: 0.1 * torch.randn(size, generator=draw) for name, size in sizes.items()}
        with torch.no_grad():
            self.streams = self._seen(self.model, torch.tensor([IDS]))
            self.result, self.logits = self._draft(self.streams[:-1], IDS[1:])

    def _seen(self, model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        mixer = model.model.hyper_connection_mixer
        handle = mixer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        model(ids)
        handle.remove()
        return seen[0][0]

    def _draft(self, streams: torch.Tensor, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        own, config = self.own, self.model.config
        embedded = self.model.model.embed_tokens(torch.tensor(ids))
        first = normed(embedded, own["pre_fc_norm_embedding"], config.rms_norm_eps) @ own["fc_embedding"].T
        wide = normed(streams, own["pre_fc_norm_hidden"], config.rms_norm_eps)
        each = wide.reshape(len(ids), config.hc_count, -1) @ own["fc_hidden"].T
        x = (each + first[:, None]).reshape(1, len(ids), -1)
        layer = self.part.model.layers[0]
        handle = layer.register_forward_pre_hook(lambda _, args: (x, *args[1:]))
        result = self._seen(self.part, torch.tensor([ids]))
        handle.remove()
        return result, self.model.lm_head(self.part.model.hyper_connection_mixer(result[None]))[0]

    def source(self) -> MemorySource:
        plain = memory_source(self.model)
        tensors = {name: t for name, t in self.model.state_dict().items() if name in plain.tensors()}
        tensors |= {f"mtp.{name}.weight": tensor for name, tensor in self.own.items()}
        for name, tensor in self.part.state_dict().items():
            if name.startswith(("model.layers.0.", "model.hyper_connection_mixer.")):
                tensors[name.replace("model.", "mtp.", 1)] = tensor
        return MemorySource(tensors, plain.metadata()["config"])


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


def run(head: StreamDraft, ops: Ops, streams: np.ndarray, ids: list[int], chunks: list[int]):
    """(streams, logits) of the rows, computed in pieces."""
    memory, hold, parts, at = Memory([head.memory()], 8, 16, "f32", ops.zeros), Hold(), [], 0
    for size in chunks:
        end = at + size
        assert memory.reserve(hold, size)
        buffers = BatchBuffers(BatchLimits(64, 1, 128, 1), memory.caches, memory.page_tokens, ops)
        rows, _ = buffers.fill([Span(ids[at:end], at, hold.pages)])
        batch, out = buffers.view(rows, 0), np.empty((size, 128), np.float32)
        with ops.scope():
            given = ops.constant(streams[at:end].copy())
            result = head.forward(batch.ids, given, memory.caches[0], batch.rows, ops)
            head.logits(result, ops, out)
            parts.append((result.copy(), out))
        memory.commit(hold, size)
        at = end
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))


@pytest.mark.parametrize("chunks", [[29], [1, 9, 19], [1] * 29], ids=["at once", "in chunks", "one by one"])
def test_streams_and_logits_equal_the_reference(case, ops, chunks):
    source = case.source()
    loaded = load_model(source, ops)
    assert loaded.notices == ()  # its tensors are known, and not needed for plain generation
    assert isinstance(loaded.model, Qwen4Exp)
    head = load_stream_draft(source, loaded.model, ops)
    assert head is not None
    found, logits = run(head, ops, case.streams.numpy(), IDS[1:], chunks)
    assert np.abs(found - case.result.numpy()).max() <= 1e-4
    assert np.abs(logits - case.logits.numpy()).max() <= 1e-4


def test_it_reads_the_streams_and_the_next_token(case):
    """The reference would be met by chance if either did not matter."""
    with torch.no_grad():
        other, _ = case._draft(case.streams[1:], IDS[1:])
        another, _ = case._draft(case.streams[:-1], IDS[:-1])
    assert (other - case.result).abs().max() > 1e-2 and (another - case.result).abs().max() > 1e-2


def test_plain_loading_and_the_estimate_leave_it_out(case):
    source, plain, config = case.source(), memory_source(case.model), EngineConfig(max_sequences=2, batch_rows=64)
    assert load_model(source, ReferenceOps()).parameters == load_model(plain, ReferenceOps()).parameters
    assert estimate(source, config, 8 << 30) == estimate(plain, config, 8 << 30)


def test_files_without_it_give_none(case, tmp_path):
    for source in (memory_source(case.model), open_weights(write_exp(case.model, tmp_path / "m.gguf"))):
        loaded = load_model(source, ReferenceOps())
        assert isinstance(loaded.model, Qwen4Exp)
        assert load_stream_draft(source, loaded.model, ReferenceOps()) is None
