"""Models with recurrent state run rows that do not count: afterwards all is as if those rows had never been there."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from strata_engine.core.batch import Span
from strata_engine.core.sequence import Hold
from strata_engine.memory.sparse import IndexedLayer, NgramLayer
from strata_engine.models.load import load_model
from strata_kernels.ops import StateLayer
from strata_kernels.reference.ops import ReferenceOps
from tests.support.forward import Runner
from tests.support.tiny_exp import OPTIONS, tiny_exp
from tests.support.tiny_models import memory_source, tiny_model

FAMILIES = ("qwen3_next", "qwen3_5", "qwen4_exp")
MOST, PROMPT = 5, 7
IDS = random.Random(5).choices(range(128), k=60)
IDS[9] = IDS[24] = OPTIONS["eos_token_id"]  # cuts n-grams


@lru_cache
def tiny(family: str):
    """One model for all tests: parts of qwen4_exp are drawn anew each time."""
    return tiny_exp() if family == "qwen4_exp" else tiny_model(family)


@dataclass
class Decoding:
    """One sequence of a runner whose right tokens are known; some of each step's rows are others."""

    runner: Runner
    ids: list[int]
    draw: random.Random
    hold: Hold = field(default_factory=Hold)
    logits: list[NDArray[np.float32]] = field(default_factory=list)

    def span(self, count: int, kept: int) -> Span:
        """The next rows: `kept` right ones, then noise."""
        start = self.hold.tokens
        assert self.runner.memory.reserve(self.hold, count)
        ids = [*self.ids[start : start + kept], *self.draw.choices(range(128), k=count - kept)]
        return Span(ids, start, self.hold.pages, count, self.hold.slot, keep=1, fold=self.hold.fold)

    def take(self, logits: NDArray[np.float32], kept: int, keep: int = 1) -> None:
        self.logits.append(logits[:kept].copy())
        self.runner.memory.commit(self.hold, kept, keep)


def start(runner: Runner, decodings: list[Decoding]) -> None:
    for own in decodings:
        logits = runner.executor.run([runner.span(own.hold, own.ids[:PROMPT])])
        own.logits.append(logits.copy())


def decode(runner: Runner, decodings: list[Decoding], draw: random.Random) -> None:
    """Prompts, then steps of all sequences: random drafts, of which random many are right; at last plain rows."""
    start(runner, decodings)
    while any(own.hold.tokens < len(own.ids) - 1 for own in decodings):
        plan = []
        for own in decodings:
            left = len(own.ids) - 1 - own.hold.tokens
            if left > 0:
                count = draw.randint(1, MOST + 1)
                plan.append((own, count, min(draw.randint(1, count), left)))
        logits, at = runner.executor.run([own.span(count, kept) for own, count, kept in plan]), 0
        for own, count, kept in plan:
            own.take(logits[at : at + count], kept)
            at += count
    for own in decodings:
        own.take(runner.executor.run([own.span(1, 1)]), 1)


def kept_arrays(runner: Runner, hold: Hold) -> list[NDArray[np.float32]]:
    """Everything of a sequence's past that a later row may read, layer by layer."""
    found = []
    for cache in runner.memory.caches:
        if isinstance(cache, NgramLayer):
            reach = cache.conv.shape[1] - runner.memory.drafts, cache.ids.shape[1] - runner.memory.drafts
            for ring, back in zip((cache.conv, cache.ids), reach, strict=True):
                found.append(np.stack([ring[hold.slot, p % ring.shape[1]] for p in _last(hold, back)]))
            cache = cache.inner
        if isinstance(cache, StateLayer):
            ring, back = cache.conv, cache.conv.shape[1] - runner.memory.drafts
            found += [np.stack([ring[hold.slot, p % ring.shape[1]] for p in _last(hold, back)]), cache.state[hold.slot]]
            continue
        kv = cache
        if isinstance(cache, IndexedLayer):
            kv, size = cache.kv, cache.index.block_tokens
            raw = cache.index.raw[hold.pages].reshape(-1, cache.index.raw.shape[2])[: hold.tokens]
            found += [raw, cache.index.blocks[hold.pages].reshape(-1, raw.shape[1])[: hold.tokens // size]]
        found.append(kv.values[hold.pages].swapaxes(1, 2).reshape(-1, *kv.values.shape[1::2])[: hold.tokens])
    return found


def _last(hold: Hold, count: int) -> range:
    return range(hold.tokens - count, hold.tokens)


def make(family: str, ops, drafts: int = MOST) -> Runner:
    return Runner(memory_source(tiny(family)), ops, context_tokens=128, sequences=4, drafts=drafts)


@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_leave_no_trace(ops, family):
    """Logits of rows that count, state, rings, values, index keys: the bits of a fresh prompt of the same tokens."""
    runner, draw = make(family, ops), random.Random(4)
    decodings = [Decoding(runner, IDS[: 24 + 7 * n], random.Random(n)) for n in range(3)]
    decode(runner, decodings, draw)
    fresh = make(family, ops, drafts=0)
    for own in decodings:
        hold = Hold()
        logits = fresh.executor.run([fresh.span(hold, own.ids)])
        assert np.array_equal(np.concatenate(own.logits), logits)
        pairs = list(zip(kept_arrays(runner, own.hold), kept_arrays(fresh, hold), strict=True))
        assert len(pairs) >= 7
        assert all(np.array_equal(one, other) for one, other in pairs)
    assert np.abs(kept_arrays(runner, decodings[0].hold)[1]).max() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_state_that_keeps_rejected_rows_is_noticed(family):
    """The fault of engines that only cut keys and values back. What the test above compares must show it."""
    runner = make(family, ReferenceOps())
    own = Decoding(runner, IDS[:20], random.Random(0))
    start(runner, [own])
    span = own.span(4, 2)
    own.take(runner.executor.run([Span(span.ids, span.start, span.pages, 4, span.slot, keep=4)]), 2, keep=2)
    own.take(runner.executor.run([own.span(1, 1)]), 1)
    fresh, hold = make(family, ReferenceOps(), drafts=0), Hold()
    logits = fresh.executor.run([fresh.span(hold, own.ids[: own.hold.tokens])])
    found = np.concatenate(own.logits)
    assert np.array_equal(found[:-1], logits[:-1])
    assert not np.array_equal(found[-1], logits[-1])


def test_the_price_of_a_draft_is_what_is_allocated():
    for family in FAMILIES:
        with_drafts, without = make(family, ReferenceOps()).memory, make(family, ReferenceOps(), drafts=0).memory
        more = _slot_bytes(with_drafts.caches) - _slot_bytes(without.caches)
        assert with_drafts.slot_bytes - without.slot_bytes == more > 0


def _slot_bytes(caches) -> int:
    total = 0
    for cache in caches:
        if isinstance(cache, NgramLayer):
            total += cache.conv.nbytes + cache.ids.nbytes
            cache = cache.inner
        if isinstance(cache, StateLayer):
            total += sum(a.nbytes for a in (cache.conv, cache.state, cache.pending) if a is not None)
    return total // 4  # sequences


def test_a_cleared_slot_forgets_pending_rows_too():
    runner = make("qwen3_5", ReferenceOps())
    own = Decoding(runner, IDS[:20], random.Random(0))
    start(runner, [own])
    own.take(runner.executor.run([own.span(4, 2)]), 2)
    cache = runner.memory.caches[0]
    assert np.abs(cache.pending[own.hold.slot]).max() > 0
    layer = runner.model.memory()[0]
    assert layer is not None
    layer.clear(cache, own.hold.pages, own.hold.slot)
    assert not cache.pending[own.hold.slot].any() and not cache.conv[own.hold.slot].any()


def test_tiny_models_have_all_that_is_checked():
    kinds = {type(layer) for layer in make("qwen4_exp", ReferenceOps()).memory.caches}
    assert kinds == {NgramLayer, StateLayer, IndexedLayer}
    assert load_model(memory_source(tiny("qwen4_exp")), ReferenceOps()).model.config.exp is not None
