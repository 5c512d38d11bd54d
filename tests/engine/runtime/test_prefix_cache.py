"""Answers are the same tokens with and without the prefix cache, and what is known does not run again."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from strata_backends.cpu import CpuBackend
from strata_engine.config import SamplingParams
from strata_engine.events import Started
from strata_engine.runtime.engine import Engine
from tests.support.engines import finish_of, ids_of, ids_request, tiny_engine
from tests.support.tiny_exp import tiny_exp, write_exp
from tests.support.tiny_models import save_tiny, tiny_model

FAMILIES = ["llama", pytest.param("qwen3_moe", marks=pytest.mark.slow), "qwen3_5_moe", "qwen4_exp"]
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=7, logprobs=2)
SEEDED = SamplingParams(
    temperature=1.3, top_k=0, top_p=1.0, min_p=0.0, seed=5, ignore_eos=True, max_tokens=5, logprobs=1
)
PAGE = 8


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    if request.param == "qwen4_exp":
        return write_exp(tiny_exp(), path / "exp.gguf")
    return save_tiny(tiny_model(request.param), path)


def prompts(count: int, seed: int = 1) -> list[list[int]]:
    """Some begin alike: with a long common part, with all of another, with a page that differs."""
    draw = random.Random(seed)
    base = draw.choices(range(3, 120), k=56)
    found = []
    for _ in range(count):
        begun = base[: draw.choice([0, 7, 8, 40, 41, 56])]
        found.append([*begun, *draw.choices(range(3, 120), k=draw.randint(1, 20))])
    return found


def ask(engine: Engine, prompt: Sequence[int], params: SamplingParams = GREEDY) -> list:
    return list(engine.submit(ids_request(*prompt), params))


def told(events: list) -> list:
    """Tokens with their log probabilities, to the bit."""
    return [(token.id, token.logprob, token.top) for event in events for token in getattr(event, "tokens", ())]


def opened(path: Path, **config) -> Engine:
    return tiny_engine(path, CpuBackend(), context_tokens=128, **config)


@pytest.fixture(scope="module")
def plain(saved: Path) -> dict[int, list]:
    """Answers of an engine without the cache, by number of the prompt; odd ones are sampled with a seed."""
    with opened(saved, prefix_cache=False) as engine:
        found = {n: told(ask(engine, prompt, params_of(n))) for n, prompt in enumerate(prompts(8))}
        assert engine.load_numbers().prefix_hit_tokens_total == 0
    return found


def params_of(number: int) -> SamplingParams:
    return SEEDED if number % 2 else GREEDY


def test_answers_one_after_the_other_are_the_same_to_the_bit(saved, plain):
    with opened(saved) as engine:
        for number, prompt in enumerate(prompts(8)):
            assert told(ask(engine, prompt, params_of(number))) == plain[number]
            engine.check()
        assert engine.load_numbers().prefix_hit_tokens_total >= 40


def test_answers_side_by_side_are_the_same_to_the_bit(saved, plain):
    with opened(saved) as engine:
        for _ in range(2):
            streams = [engine.submit(ids_request(*p), params_of(n)) for n, p in enumerate(prompts(8))]
            assert [told(list(stream)) for stream in streams] == list(plain.values())
            engine.check()
        assert engine.load_numbers().prefix_hit_tokens_total >= 40


def test_turns_of_a_conversation_read_only_what_is_new(saved):
    first = prompts(1)[0][:1] + random.Random(4).choices(range(3, 120), k=60)
    with opened(saved) as engine, opened(saved, prefix_cache=False) as without:
        history, cached = list(first), []
        for _ in range(3):
            events = ask(engine, history)
            assert told(events) == told(ask(without, history))
            cached.append(finish_of(events).usage.cached_tokens)
            assert isinstance(events[0], Started) and events[0].cached_tokens == cached[-1]
            history += [*ids_of(events), 7, 9]
        assert cached[0] == 0 and 40 <= cached[1] <= cached[2] <= 88
        assert cached[1] % PAGE == 0


def test_prompts_that_begin_alike_at_once_are_read_once(saved):
    common = random.Random(7).choices(range(3, 120), k=100)
    asked = [common, [*common[:90], 5, 6], common]
    with opened(saved, prefix_cache=False) as without:
        wanted = [told(ask(without, p)) for p in asked]
    gate = threading.Event()
    with opened(saved) as engine:
        # while the first prompt's event is held back all others arrive, so that they are admitted together
        held = engine.submit(ids_request(1, 2, 3), GREEDY, sink=lambda event: gate.wait(30) and None)
        streams = [engine.submit(ids_request(*p), GREEDY) for p in asked]
        gate.set()
        assert [told(list(stream)) for stream in streams] == wanted
        list(held)
        engine.check()
        found = engine.load_numbers().prefix_hit_tokens_total
        assert found >= (80 if engine.parts.memory.recurrent else 160)


def test_pages_run_out_and_sequences_are_preempted_and_answers_stay(saved):
    longer = replace(GREEDY, max_tokens=50)
    asked = [p[:60] for p in prompts(6, seed=2)]
    with opened(saved, prefix_cache=False) as without:
        wanted = [told(ask(without, p, longer)) for p in asked]
    with opened(saved, max_sequences=3) as engine:
        pool = engine.parts.memory.pool
        hoard = pool.take(pool.total - 15)  # as if the cache were small: one sequence may take 14 pages
        streams = [engine.submit(ids_request(*p), longer) for p in asked]
        assert [told(list(stream)) for stream in streams] == wanted
        assert hoard is not None
        pool.give(hoard)
        engine.check()
        assert engine.report().speed["preemptions"] > 0


def test_a_cancelled_prompt_leaves_what_it_has_read(saved):
    prompt = random.Random(6).choices(range(3, 120), k=100)
    with opened(saved, batch_rows=8) as engine, opened(saved, prefix_cache=False) as without:
        ran, executor = [], engine.parts.executor
        run = executor.run

        def counted(spans):
            ran.append(sum(len(span.ids) for span in spans))
            if len(ran) == 6:
                stream.close()
            return run(spans)

        stream = engine.submit(ids_request(*prompt), GREEDY, sink=lambda event: started.append(event))
        started: list = []
        executor.run = counted
        list(stream)
        executor.run = run
        engine.check()
        events = ask(engine, prompt)
        assert told(events) == told(ask(without, prompt))
        if not engine.parts.memory.recurrent:
            assert 0 < finish_of(events).usage.cached_tokens < 100
