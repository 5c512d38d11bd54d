"""Drafters for tests: they know the answers, or are wrong where a test wants it, and they check what they are told."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from strata_engine.config import SpecConfig
from strata_engine.core.sequence import Sequence as TokenSequence
from strata_engine.draft import DRAFTERS
from strata_engine.draft.base import Ask, DraftContext, Drafter, DraftRoom, Features, Proposal, Seen, Wants
from strata_engine.runtime.engine import Engine
from tests.support.engines import tiny_engine

Guess = Callable[[TokenSequence, int], Sequence[int]]  # (sequence, most) -> drafts


class TestDrafter:
    """Guesses by a function. Every row it is told of must follow the last one; features are kept when it wants any."""

    __test__ = False
    name = "ngram"
    recorded = 0

    def __init__(self, guess: Guess, most: int = 3, wants: Wants = Wants()) -> None:
        self.guess, self.most, self.wants = guess, most, wants
        self.rounds = 0  # asks that were given a draft
        self.read: dict[str, int] = {}  # rows seen of each sequence
        self.features: dict[str, list[np.ndarray]] = {}
        self.forgotten: list[str] = []

    def memory(self) -> list[Any]:
        return []

    def bind(self, room: DraftRoom) -> None:
        self.room = room

    def plan(self) -> None:
        pass

    def prepare(self, depth: int) -> None:
        assert depth >= 1

    def observe(self, seen: Sequence[Seen], features: Features | None) -> None:
        assert (features is not None) == self.wants.anything
        for one in seen:
            known = self.read.get(one.sequence.id, one.start)  # rows before may come from the prefix cache
            assert one.start == known, f"rows from {one.start} follow {known}"
            assert one.start + one.count == one.sequence.hold.tokens < len(one.sequence.tokens)
            self.read[one.sequence.id] = one.start + one.count
            if features is not None:
                rows = slice(one.first_row, one.first_row + one.count)
                parts = [np.array(array[rows]) for array in (features.final, features.taps) if array is not None]
                self.features.setdefault(one.sequence.id, []).append(np.concatenate(parts, axis=1))

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        found = []
        for ask in asks:
            hold = ask.sequence.hold
            assert hold.tokens == len(ask.sequence.tokens) - 1 == self.read[ask.sequence.id]
            assert len(hold.pages) * self.room.page_tokens >= hold.tokens + 1 + ask.most
            drafts = tuple(self.guess(ask.sequence, ask.most))[: ask.most]
            self.rounds += bool(drafts)
            found.append(Proposal(drafts))
        return found

    def forget(self, sequence_id: str) -> None:
        self.read.pop(sequence_id, None)
        self.forgotten.append(sequence_id)

    def report(self) -> dict[str, Any]:
        return {"kind": "test"}


def oracle(answers: Mapping[tuple[int, ...], Sequence[int]]) -> Guess:
    """Knows the answer to every prompt."""

    def guess(sequence: TokenSequence, most: int) -> Sequence[int]:
        answer = answers[tuple(sequence.tokens[: sequence.prompt_tokens])]
        return answer[sequence.generated : sequence.generated + most]

    return guess


def wrong_at(place: int, answers: Mapping[tuple[int, ...], Sequence[int]], vocab: int = 128) -> Guess:
    """Knows the answer but for draft `place`, counted from 0, of every round."""
    right = oracle(answers)

    def guess(sequence: TokenSequence, most: int) -> Sequence[int]:
        return [(t + 1) % vocab if n == place else t for n, t in enumerate(right(sequence, most))]

    return guess


def always_wrong(answers: Mapping[tuple[int, ...], Sequence[int]], vocab: int = 128) -> Guess:
    """Never gives the token that comes."""
    right = oracle(answers)
    return lambda sequence, most: [(token + 1) % vocab for token in right(sequence, most)]


def erring(rate: float, answers: Mapping[tuple[int, ...], Sequence[int]], vocab: int = 128) -> Guess:
    """Knows the answer, but each draft is wrong at the given rate; chains have random lengths, 0 too."""
    right = oracle(answers)

    def guess(sequence: TokenSequence, most: int) -> Sequence[int]:
        draw = random.Random(f"{sequence.tokens}")
        known = right(sequence, draw.randint(0, most))
        return [(token + 1) % vocab if draw.random() < rate else token for token in known]

    return guess


def random_guess(sequence: TokenSequence, most: int, vocab: int = 128) -> Sequence[int]:
    """Any tokens, the same for the same sequence so far."""
    draw = random.Random(f"{sequence.tokens}")
    return draw.choices(range(vocab), k=draw.randint(0, most))


def lookup(sequence: TokenSequence, most: int) -> Sequence[int]:
    """What followed the last token where it stood before."""
    tokens = sequence.tokens
    for at in range(len(tokens) - 2, -1, -1):
        if tokens[at] == tokens[-1]:
            return tokens[at + 1 : at + 1 + most]
    return []


_given: list[Drafter] = []


def _take(context: DraftContext) -> Drafter:
    return _given.pop()


@contextmanager
def drafting_engine(
    path: Path, drafter: Drafter, backend: Any = None, verify: bool = False, fails: bool = False, **config: Any
) -> Iterator[Engine]:
    """A tiny engine with this drafter, always asked for all it can give.

    Pages are compared at the end, and the drafter is still on unless it `fails`.
    """
    spec = SpecConfig("ngram", n_max=drafter.most, adaptive=False, strict=True, verify=verify)
    _given.append(drafter)
    with mock.patch.dict(DRAFTERS, {"ngram": "tests.support.drafters:_take"}):
        engine = tiny_engine(path, backend, spec=spec, **config)
    with engine:
        yield engine
        engine.check()
        off = [notice.message for notice in engine.report().notices if notice.code == "spec_off"]
        assert bool(off) == fails, off
