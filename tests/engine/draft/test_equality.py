"""Whatever is drafted, the answer is the one that plain decoding gives, token for token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from strata_backends.cpu import CpuBackend
from strata_engine.config import SamplingParams
from tests.support.drafters import (
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


@pytest.fixture(scope="module", params=["llama", "qwen3_moe"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answers]:
    """A checkpoint, and prompt -> answer without drafts, by native operations."""
    path = save_tiny(tiny_model(request.param), tmp_path_factory.mktemp(request.param))
    with tiny_engine(path, CpuBackend(), max_sequences=8, threads=1) as engine:
        asked = prompts(48)
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
        asked = list(answers)[: 6 * sequences]
        config = {"max_sequences": sequences, "batch_rows": 24, "threads": 1}
        with drafting_engine(path, drafter, CpuBackend(), **config) as engine:
            assert run_all(engine, asked) == [answers[prompt] for prompt in asked]
        assert drafter.rounds > 0 and not drafter.read
