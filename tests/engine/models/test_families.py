"""Every family against transformers, in several chunkings, with plain torch operations."""

from __future__ import annotations

import random

import pytest
import torch

from strata_kernels.reference.ops import ReferenceOps
from tests.support.forward import Runner
from tests.support.tiny_models import FAMILIES, memory_source, oracle_logits, tiny_model

IDS = random.Random(5).choices(range(128), k=70)
CHUNKINGS = {
    "at once": [70],
    "in odd chunks": [1, 17, 31, 16, 5],
    "prefill then single tokens": [58] + [1] * 12,
}


@pytest.mark.parametrize("chunks", CHUNKINGS.values(), ids=CHUNKINGS.keys())
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family, chunks, measured):
    model = tiny_model(family)
    runner = Runner(memory_source(model), ReferenceOps())
    error = (runner.all_logits(IDS, chunks) - oracle_logits(model, IDS)).abs().max().item()
    assert measured(family, "safetensors", "reference", "transformers", error) <= 1e-4


def test_logits_of_two_different_models_differ():
    first, second = tiny_model("llama", seed=0), tiny_model("llama", seed=1)
    runner = Runner(memory_source(first), ReferenceOps())
    assert (runner.all_logits(IDS) - oracle_logits(second, IDS)).abs().max() > 0.05


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_keys_and_values_stay_close(family):
    model = tiny_model(family)
    runner = Runner(memory_source(model), ReferenceOps(), kv_type="bf16")
    assert (runner.all_logits(IDS) - oracle_logits(model, IDS)).abs().max() < 0.03


def test_a_row_is_the_same_bit_for_bit_alone_and_among_eight():
    runner = Runner(memory_source(tiny_model("qwen3")), ReferenceOps())
    prompts = [[(7 * i + 3 * j) % 128 for j in range(20 + i)] for i in range(8)]
    alone = [runner.all_logits(p)[-1] for p in prompts]
    from strata_engine.core.sequence import Hold

    holds = [Hold() for _ in prompts]
    runner.executor.run([runner.span(h, p[:-1], 0) for h, p in zip(holds, prompts, strict=True)])
    spans = [runner.span(h, p[-1:], 1) for h, p in zip(holds, prompts, strict=True)]
    together = torch.from_numpy(runner.executor.run(spans))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
