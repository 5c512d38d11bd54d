"""The engine on a model with recurrent layers: slots come back, states are those of their own sequence alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from strata_engine.config import SamplingParams
from strata_engine.core.batch import Span
from strata_engine.runtime.engine import Engine
from tests.support.engines import ReferenceBackend, finish_of, ids_of, ids_request, tiny_engine
from tests.support.tiny_models import oracle_logits, save_tiny, tiny_model

FAMILY = "qwen3_5"
PARAMS = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=10)


def prompts(count: int) -> list[list[int]]:
    draw = random.Random(3)
    return [draw.choices(range(3, 128), k=draw.randint(3, 30)) for _ in range(count)]


def answer(engine: Engine, prompt: Sequence[int]) -> list[int]:
    return ids_of(list(engine.submit(ids_request(*prompt), PARAMS)))


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tiny_model(FAMILY), tmp_path_factory.mktemp(FAMILY))


@pytest.fixture
def engine(hybrid: Path) -> Iterator[Engine]:
    with tiny_engine(hybrid, max_sequences=3) as opened:
        yield opened
        opened.check()
        assert opened.parts.memory.slots.used == 0


@pytest.fixture(scope="module")
def alone(hybrid: Path) -> list[list[int]]:
    """The answers to `prompts(6)`, each by itself, from slots that nobody used before."""
    with tiny_engine(hybrid, max_sequences=1) as engine:
        return [answer(engine, prompt) for prompt in prompts(6)]


def test_greedy_tokens_equal_transformers(alone):
    model = tiny_model(FAMILY)
    ids = list(prompts(6)[0])
    for token in alone[0]:
        logits = oracle_logits(model, ids)[-1]
        logits[2] = -1e9
        assert int(logits.argmax()) == token
        ids.append(token)


def test_batch_mates_and_used_slots_do_not_change_an_answer(engine, alone):
    streams = [engine.submit(ids_request(*prompt), PARAMS) for prompt in prompts(6)]  # three at once, each slot twice
    assert [ids_of(list(stream)) for stream in streams] == alone
    assert [answer(engine, prompt) for prompt in prompts(6)[:2]] == alone[:2]


def test_a_cancelled_sequence_leaves_nothing_behind(engine, alone):
    stream = engine.submit(ids_request(*prompts(6)[4]), SamplingParams(temperature=0.0, ignore_eos=True))
    events = []
    for event in stream:
        events.append(event)
        if len(events) == 3:
            stream.close()
    assert finish_of(events).reason in ("cancelled", "length")
    assert answer(engine, prompts(6)[0]) == alone[0]


def test_a_preempted_sequence_gives_the_same_answer(hybrid, alone):
    with tiny_engine(hybrid, max_sequences=3) as engine:
        priced = engine.parts.priced
    fixed = priced.weights_bytes + priced.workspace_bytes + priced.state_bytes
    cramped = ReferenceBackend(free_bytes=fixed + 13 * 8 * priced.kv_token_bytes)  # pages of 8 tokens
    with tiny_engine(hybrid, cramped, max_sequences=3) as engine:
        longer = replace(PARAMS, max_tokens=60)
        streams = [engine.submit(ids_request(*prompt), longer) for prompt in prompts(4)]
        assert [ids_of(list(stream))[:10] for stream in streams] == alone[:4]
        assert engine.report().speed["preemptions"] > 0
        engine.check()


def test_a_step_that_fails_half_way_is_run_again_from_the_last_good_state(engine, alone):
    """The rows of a failed step have changed the states already when their sequences run again one by one."""
    executor, ran, failed = engine.parts.executor, engine.parts.executor.run, []

    def sometimes(spans: Sequence[Span]):
        logits = ran(spans)
        if len(spans) > 1 and len(failed) < 3 and spans[0].start > 0:
            failed.append(len(spans))
            raise RuntimeError("a kernel failed")
        return logits

    executor.run = sometimes
    streams = [engine.submit(ids_request(*prompt), PARAMS) for prompt in prompts(6)]
    assert [ids_of(list(stream)) for stream in streams] == alone
    assert len(failed) == 3


def test_the_report_and_the_estimate_agree_on_the_states(engine):
    memory = engine.report().memory
    assert memory["state_bytes"] == engine.parts.priced.state_bytes == 3 * engine.parts.memory.slot_bytes > 0
