"""The law of what verification gives: every draft and choice enumerated, and counted on the real sampler."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import pytest

from strata_engine.config import SamplingParams
from strata_engine.core.sequence import Sequence as TokenSequence
from strata_engine.events import Token
from strata_engine.runtime.active import Active, Advance
from strata_engine.runtime.prompt import IdReader, Prompt
from strata_engine.runtime.sampler import Chooser, uniform
from strata_engine.runtime.stream import SequenceStream
from strata_engine.runtime.transforms import Floats, History

Prefix = tuple[int, ...]
Advancing = Callable[[Active, Floats, tuple[int, ...]], Advance]
RIGHT = Active.advance_all


def trusting(active: Active, logits: Floats, drafts: tuple[int, ...]) -> Advance:
    """A fault: the first draft is taken without a look."""
    if not drafts:
        return RIGHT(active, logits, drafts)
    active.sequence.tokens.append(drafts[0])
    rest = RIGHT(active, logits[1:], drafts[1:])
    return Advance(rest.accepted + 1, rest.finish)


def one_row_late(active: Active, logits: Floats, drafts: tuple[int, ...]) -> Advance:
    """A fault: tokens are chosen from the row before their own."""
    return RIGHT(active, np.concatenate([logits[:1], logits[:-1]]), drafts)


@cache
def target(prefix: Prefix, vocab: int) -> Floats:
    """Logits after a prefix: random ones, some of them impossible."""
    draw = np.random.default_rng([vocab, *prefix])
    row = draw.normal(scale=1.5, size=vocab).astype(np.float32)
    if prefix and sum(prefix) % 3 == 0:
        row[prefix[-1]] = -np.inf
    return row


@cache
def probabilities(prefix: Prefix, vocab: int) -> np.ndarray:
    powers = np.exp(target(prefix, vocab).astype(np.float64))
    return powers / powers.sum()


def rows(prefix: Prefix, drafts: Prefix, vocab: int) -> Floats:
    return np.stack([target(prefix + drafts[:n], vocab) for n in range(len(drafts) + 1)])


def active_after(prefix: Prefix, chooser: object, params: SamplingParams) -> Active:
    sequence = TokenSequence("a", [0, *prefix], 1, 99)
    stream = SequenceStream("a", lambda _: False, lambda _: None)
    return Active(sequence, Prompt((0,), frozenset()), params, IdReader(), chooser, stream)  # type: ignore[arg-type]


class Scripted:
    """Chooses the given tokens and multiplies their probabilities."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens, self.used, self.chance = tokens, 0, 1.0

    def choose(self, logits: Floats, history: History) -> Token:
        powers = np.exp(logits.astype(np.float64))
        token = self.tokens[self.used]
        self.used += 1
        self.chance *= powers[token] / powers.sum()
        return Token(token)


def outcomes(advance: Advancing, prefix: Prefix, drafts: Prefix, vocab: int) -> Iterator[tuple[Prefix, float]]:
    """(tokens gained, probability) of every course of a round."""
    logits, done = rows(prefix, drafts, vocab), set()
    for script in itertools.product(range(vocab), repeat=len(drafts) + 1):
        chooser = Scripted(script)
        active = active_after(prefix, chooser, SamplingParams())
        advance(active, logits, drafts)
        course = script[: chooser.used]
        if course not in done:
            done.add(course)
            yield tuple(active.sequence.tokens[1 + len(prefix) :]), chooser.chance


def law(advance: Advancing, length: int, most: int, vocab: int) -> Counter[Prefix]:
    """Of the first `length` tokens, over drafters that draw any chain of up to `most` drafts."""
    found: Counter[Prefix] = Counter()
    open_ends: list[tuple[Prefix, float]] = [((), 1.0)]
    while open_ends:
        prefix, chance = open_ends.pop()
        if len(prefix) >= length:
            found[prefix[:length]] += chance  # type: ignore[assignment]
            continue
        chains = [chain for n in range(most + 1) for chain in itertools.product(range(vocab), repeat=n)]
        weights = np.random.default_rng([7, *prefix]).dirichlet(np.full(len(chains), 0.3))
        merged: Counter[Prefix] = Counter()
        for chain, weight in zip(chains, weights, strict=True):
            for gained, share in outcomes(advance, prefix, chain, vocab):
                merged[(prefix + gained)[:length]] += weight * share  # type: ignore[assignment]
        open_ends += [(tokens, chance * share) for tokens, share in merged.items() if share]
    return found


def distance(found: Counter[Prefix], length: int, vocab: int) -> float:
    wanted = {
        tokens: float(np.prod([probabilities(tokens[:n], vocab)[token] for n, token in enumerate(tokens)]))
        for tokens in itertools.product(range(vocab), repeat=length)
    }
    assert abs(sum(wanted.values()) - 1) < 1e-12
    return max(abs(found[tokens] - chance) for tokens, chance in wanted.items())


@pytest.mark.parametrize("vocab, most, length", [(3, 2, 3), (4, 1, 3)])
def test_the_law_of_the_tokens_is_the_targets_whatever_is_drafted(vocab, most, length):
    assert distance(law(RIGHT, length, most, vocab), length, vocab) < 1e-12


@pytest.mark.parametrize("fault", [trusting, one_row_late])
def test_a_faulty_verification_has_another_law(fault):
    assert distance(law(fault, 3, 2, 3), 3, 3) > 1e-3


VOCAB, ROUNDS = 8, 3000
LIMIT = 131.4  # chi-square with 63 degrees of freedom: p = 1e-6


def chi_square(advance: Advancing, chooser: type[Chooser] = Chooser) -> float:
    """Of the first two tokens, with a seed of its own for each answer, and half of the drafts right."""
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    counts: Counter[Prefix] = Counter()
    draw = random.Random(5)
    for seed in range(ROUNDS):
        sampler = chooser(SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed), ())
        active = active_after((), sampler, params)
        while active.sequence.generated < 2:
            prefix = tuple(active.sequence.tokens[1:])
            drafts = (int(probabilities(prefix, VOCAB).argmax()), draw.randrange(VOCAB))
            advance(active, rows(prefix, drafts, VOCAB), drafts)
        counts[tuple(active.sequence.tokens[1:3])] += 1
    total = rest = rest_wanted = 0.0
    for tokens in itertools.product(range(VOCAB), repeat=2):
        wanted = ROUNDS * probabilities((), VOCAB)[tokens[0]] * probabilities(tokens[:1], VOCAB)[tokens[1]]
        if wanted < 5:
            rest, rest_wanted = rest + counts[tokens], rest_wanted + wanted
        else:
            total += (counts[tokens] - wanted) ** 2 / wanted
    return total + ((rest - rest_wanted) ** 2 / rest_wanted if rest_wanted else 0.0)


class SameNumber(Chooser):
    """A fault: every choice of an answer uses the same random number."""

    def _draw(self, row: Floats, step: int) -> int:
        return super()._draw(row, 0)


def test_the_real_sampler_gives_the_targets_tokens_and_faults_are_seen():
    assert uniform(1, 0) != uniform(1, 1)
    assert chi_square(RIGHT) < LIMIT
    assert chi_square(RIGHT, SameNumber) > LIMIT
    assert chi_square(trusting) > LIMIT
