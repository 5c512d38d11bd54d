"""What a speculating engine keeps for the next turn holds no rejected row, and a hit does not disturb drafts."""

from __future__ import annotations

import random

import pytest

from strata_backends.cpu import CpuBackend
from strata_engine.config import SamplingParams
from strata_engine.memory.prefixes import Prefixes
from tests.support.drafters import TestDrafter, drafting_engine, erring
from tests.support.engines import finish_of, ids_of, ids_request, tiny_engine
from tests.support.tiny_models import save_tiny, tiny_model

PARAMS = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=21, logprobs=1)
SETTINGS = {"context_tokens": 160, "threads": 1, "max_sequences": 3}


def told(events: list) -> list:
    return [(token.id, token.logprob, token.top) for event in events for token in getattr(event, "tokens", ())]


@pytest.fixture(scope="module", params=["llama", "qwen3_5_moe"])
def model(request, tmp_path_factory):
    return save_tiny(tiny_model(request.param), tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def talks(model):
    """Three conversations of three turns: prompts and what is told, without drafts or cache."""
    draw, found = random.Random(8), []
    with tiny_engine(model, CpuBackend(), prefix_cache=False, **SETTINGS) as engine:
        for _ in range(3):
            prompt, turns = draw.choices(range(3, 120), k=draw.randint(20, 40)), []
            for _ in range(3):
                events = list(engine.submit(ids_request(*prompt), PARAMS))
                turns.append((tuple(prompt), told(events)))
                prompt = [*prompt, *ids_of(events), *draw.choices(range(3, 120), k=3)]
            found.append(turns)
    return found


def drafter(talks, rate: float) -> TestDrafter:
    answers = {prompt: [token[0] for token in tokens] for turns in talks for prompt, tokens in turns}
    return TestDrafter(erring(rate, answers), 5)


def run(engine, talks) -> list[int]:
    """Every turn of all conversations at once; tokens of each prompt that were known."""
    known = []
    for number in range(3):
        streams = [engine.submit(ids_request(*turns[number][0]), PARAMS) for turns in talks]
        for stream, turns in zip(streams, talks, strict=True):
            events = list(stream)
            assert told(events) == turns[number][1]
            known.append(finish_of(events).usage.cached_tokens)
        engine.check()
    return known


@pytest.mark.parametrize("rate", [0.0, 0.4, 1.0])
def test_turns_are_the_same_to_the_bit_with_drafts_and_with_hits(model, talks, rate):
    guesses = drafter(talks, rate)
    with drafting_engine(model, guesses, CpuBackend(), **SETTINGS) as engine:
        known = run(engine, talks)
        recurrent = engine.parts.memory.recurrent
    assert known[:3] == [0, 0, 0]
    if recurrent:  # known only where a copy of the state is
        assert max(known[3:]) >= 32
    else:  # to the last whole page of the answer, but for its last token, which never ran
        prompts = [len(turns[number][0]) for number in (0, 1) for turns in talks]
        assert known[3:] == [(length + 20) // 8 * 8 for length in prompts]
    assert guesses.rounds > 0


def test_a_cache_that_keeps_rejected_rows_is_caught(model, talks):
    """The negative control: pages are entered as if every reserved row had been kept."""
    enter = Prefixes.enter

    def greedily(self, sequence):
        hold = sequence.hold
        rows = min(len(hold.pages) * self.page_tokens, len(sequence.tokens) + 8)
        tokens, sequence.tokens = sequence.tokens, [*sequence.tokens, *[7] * 8]
        hold.tokens, before = rows, hold.tokens
        try:
            return enter(self, sequence)
        finally:
            hold.tokens, sequence.tokens = before, tokens

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Prefixes, "enter", greedily)
        with tiny_engine(model, CpuBackend(), **SETTINGS) as engine, pytest.raises(AssertionError):
            for prompt, tokens in (turn for turns in talks for turn in turns):
                ids = [token[0] for token in tokens]
                list(engine.submit(ids_request(*prompt), PARAMS))
                longer = [*prompt, *ids, *[7] * 8, 5]
                with_hit = told(list(engine.submit(ids_request(*longer), PARAMS)))
                with tiny_engine(model, CpuBackend(), prefix_cache=False, **SETTINGS) as plain:
                    assert with_hit == told(list(plain.submit(ids_request(*longer), PARAMS)))
