"""Whatever is drafted, the answer is the one that plain decoding gives, token for token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strata_backends.cpu import CpuBackend
from strata_engine.config import SamplingParams
from tests.support.drafters import (
    Guess,
    TestDrafter,
    always_wrong,
    drafting_engine,
    erring,
    lookup,
    oracle,
    random_guess,
    wrong_at,
)
from tests.support.engines import GREEDY, ids_of, ids_request, tiny_engine
from tests.support.tiny_models import save_tiny, tiny_model

TOKENS = 20
PARAMS = replace(GREEDY, max_tokens=TOKENS)
Answers = dict[tuple[int, ...], list[int]]


def prompts(count: int) -> list[tuple[int, ...]]:
    """Of lengths around a page (8), short and longer than a step (16 rows); some repeat themselves."""
    draw = random.Random(11)
    lengths = [7, 8, 9, 1, 2, 15, 16, 17, 33]
    found = []
    for n in range(count):
        ids = draw.choices(range(3, 128), k=lengths[n % len(lengths)])
        found.append(tuple(ids if n % 3 else (ids[:4] * len(ids))[: len(ids)]))
    return found


def run_all(engine, asked: Sequence[tuple[int, ...]], params: SamplingParams = PARAMS) -> list[list[int]]:
    streams = [engine.submit(ids_request(*prompt), params) for prompt in asked]
    return [ids_of(list(stream)) for stream in streams]


@pytest.fixture(scope="module", params=["llama", "qwen3_moe", "qwen3_5_moe"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answers]:
    """A checkpoint, and prompt -> answer without drafts, by native operations."""
    path = save_tiny(tiny_model(request.param), tmp_path_factory.mktemp(request.param))
    with tiny_engine(path, CpuBackend(), max_sequences=8, threads=1) as engine:
        asked = prompts(32)
        return path, dict(zip(asked, run_all(engine, asked), strict=True))


GUESSES = {
    "oracle": oracle,
    "always wrong": always_wrong,
    "wrong at 0": lambda answers: wrong_at(0, answers),
    "wrong at 2": lambda answers: wrong_at(2, answers),
    "wrong at 6": lambda answers: wrong_at(6, answers),
    "erring": lambda answers: erring(0.3, answers),
    "random": lambda answers: random_guess,
    "lookup": lambda answers: lookup,
}


@pytest.mark.parametrize("name", GUESSES)
def test_greedy_answers_are_those_of_plain_decoding(family, name):
    path, answers = family
    for most, sequences in ((7, 1), (3, 4), (1, 8)):
        drafter = TestDrafter(GUESSES[name](answers), most)
        asked = list(answers)[: 4 * sequences]
        config = {"max_sequences": sequences, "batch_rows": 24, "threads": 1}
        with drafting_engine(path, drafter, CpuBackend(), **config) as engine:
            assert run_all(engine, asked) == [answers[prompt] for prompt in asked]
        assert drafter.rounds > 0 and not drafter.read


# Every kind of drafter, shared out over the depths: each runs at one of them in every family, batch and cache.
SHARED_OUT = {
    1: ("oracle", "always wrong", "wrong at 0", "wrong at 1"),
    3: ("wrong at 2", "wrong at 3", "erring"),
    7: ("wrong at 4", "wrong at 5", "wrong at 6", "wrong at 7", "random"),
    15: ("lookup", "oracle", "wrong at 8"),
}


def guess_named(name: str, answers: Answers) -> Guess:
    if name in GUESSES:
        return GUESSES[name](answers)
    return wrong_at(int(name.removeprefix("wrong at ")), answers)


@pytest.fixture(scope="module")
def many(family: tuple[Path, Answers]) -> Answers:
    """The answers to 200 prompts without drafts."""
    with tiny_engine(family[0], CpuBackend(), max_sequences=8, threads=1) as engine:
        asked = prompts(200)
        return dict(zip(asked, run_all(engine, asked), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("cached", [True, False], ids=["prefix hits", "no prefix hits"])
@pytest.mark.parametrize("most", SHARED_OUT)
@pytest.mark.parametrize("sequences", [1, 4, 8])
def test_two_hundred_prompts_with_every_drafter(family, many, sequences, most, cached):
    """Every prompt a second time, so that a prefix cache has something to give."""
    config = {"max_sequences": sequences, "threads": 1, "prefix_cache": cached}
    for name in SHARED_OUT[most]:
        check_all(family[0], guess_named(name, many), most, many, config)


def check_all(path: Path, guess: Guess, most: int, answers: Answers, config: dict[str, Any]) -> None:
    drafter = TestDrafter(guess, most)
    with drafting_engine(path, drafter, CpuBackend(), **config) as engine:
        for _ in range(2 if config["prefix_cache"] else 1):
            assert run_all(engine, list(answers)) == list(answers.values())
    assert drafter.rounds > 0 and not drafter.read
