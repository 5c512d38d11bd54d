"""Speculation methods side by side: the same greedy answers, one engine a method, one sequence at a time.

In each engine every case runs with drafts and without, one right after the other and the order turning, so that a
drift of the machine touches both alike; the speed-up is the quotient of the two. Of several repetitions the fastest
counts, on both sides. Answers are compared token for token with the first ones of the whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata_engine.bench.report import rounded
from strata_engine.bench.suites import Case, is_right
from strata_engine.config import SamplingParams
from strata_engine.errors import CheckFailed
from strata_engine.events import Drafts, Finish, Reasoning, Text, Token
from strata_engine.runtime.engine import Engine

PLAIN = "none"
_SHORTEST_S = 1e-9  # a clock that did not move must not divide by zero


@dataclass(frozen=True)
class Answer:
    """One run of a case. `steps`: decode steps; without drafts one for every token but the first."""

    ids: tuple[int, ...]
    text: str
    decode_s: float
    drafts: Drafts

    @property
    def steps(self) -> int:
        """Decode steps after the prompt."""
        return self.drafts.steps or max(0, len(self.ids) - 1)


@dataclass(frozen=True)
class Pair:
    """A case with its answer by the method, and by plain decoding in the same engine."""

    case: Case
    by_method: Answer
    plain: Answer


@dataclass(frozen=True)
class CompareRow:
    """A test under one method. `difference`: where an answer differs first, "" for nowhere."""

    test: str
    method: str
    pairs: tuple[Pair, ...]
    difference: str
    drafter: dict[str, Any] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """Flat JSON data, rounded once for every form."""
        ours, plain = [pair.by_method for pair in self.pairs], [pair.plain for pair in self.pairs]
        steps, tokens = sum(a.steps for a in ours), sum(len(a.ids) for a in ours)
        asked = [pair for pair in self.pairs if pair.case.result is not None]
        drafted, accepted = sum(a.drafts.drafted for a in ours), sum(a.drafts.accepted for a in ours)
        speed, plain_speed = _per_second(ours), _per_second(plain)
        return {
            "test": self.test,
            "spec": self.method,
            "answers": len(self.pairs),
            "asked": len(asked),
            "right": sum(is_right(pair.case.result or "", pair.by_method.text) for pair in asked),
            "tokens": tokens,
            "steps": steps,
            "rounds": sum(a.drafts.rounds for a in ours),
            "drafted": drafted,
            "accepted": accepted,
            "by_position": _summed([a.drafts.by_position for a in ours]),
            "accept_rate": round(accepted / drafted, 4) if drafted else None,
            "accept_length": round((tokens - len(self.pairs)) / max(1, steps), 4),  # (n-1)/N
            "accept_length_with_first": round(tokens / max(1, steps), 4),  # n/N
            "step_ms": rounded(1e3 * sum(a.decode_s for a in ours) / max(1, steps)),
            "tps": rounded(speed),
            "plain_tps": rounded(plain_speed),
            "speed_up": round(speed / plain_speed, 4),
            "same_answers": not self.difference,
            "difference": self.difference,
        }


def _per_second(answers: Sequence[Answer]) -> float:
    return sum(len(a.ids) - 1 for a in answers) / max(sum(a.decode_s for a in answers), _SHORTEST_S)


def _summed(counts: Sequence[tuple[int, ...]]) -> list[int]:
    longest = max(map(len, counts), default=0)
    return [sum(one[place] for one in counts if place < len(one)) for place in range(longest)]


CasesOf = Callable[[Engine], tuple[str, Sequence[Case]]]  # the name of the test, and its cases


@dataclass(frozen=True)
class ComparePlan:
    """Every test under every method, `repetitions` times. `open_engine`: by method; strict about its drafter."""

    methods: tuple[str, ...]
    tests: tuple[CasesOf, ...]
    open_engine: Callable[[str], Engine]
    repetitions: int = 1


class Comparison:
    """Runs a plan. `said` is told what begins; `model` is set by `describe` once an engine is open."""

    def __init__(
        self, plan: ComparePlan, said: Callable[[str], None], describe: Callable[[Engine], dict[str, Any]]
    ) -> None:
        self.plan, self._said, self._describe = plan, said, describe
        self.model: dict[str, Any] = {}
        self._first: dict[str, tuple[int, ...]] = {}  # case -> ids of its first answer

    def rows(self) -> Iterator[CompareRow]:
        """Each row as soon as it is measured. Raises what opening an engine raises, and CheckFailed for no answer."""
        for method in self.plan.methods:
            with self.plan.open_engine(method) as engine:
                self.model = self._describe(engine)
                drafter = engine.report().speculation.get("drafters", {})
                for cases_of in self.plan.tests:
                    test, cases = cases_of(engine)
                    self._said(f"{test}, speculation {method}, {len(cases)} x {self.plan.repetitions} runs")
                    pairs = tuple(self._pairs(engine, method, cases))
                    yield CompareRow(test, method, pairs, self._difference(pairs), drafter)

    def _pairs(self, engine: Engine, method: str, cases: Sequence[Case]) -> Iterator[Pair]:
        drafting = [False] if method == PLAIN else [False, True]
        for speculate in drafting:
            _ask(engine, cases[0], speculate)  # steps are recorded when a shape runs first
        for number, case in enumerate(cases):
            best: dict[bool, Answer] = {}
            for repetition in range(self.plan.repetitions):
                for speculate in drafting[:: -1 if (number + repetition) % 2 else 1]:
                    answer = _ask(engine, case, speculate)
                    if speculate not in best or answer.decode_s < best[speculate].decode_s:
                        best[speculate] = answer
            self._first.setdefault(case.name, best[False].ids)
            yield Pair(case, best[drafting[-1]], best[False])

    def _difference(self, pairs: Sequence[Pair]) -> str:
        for pair in pairs:
            first = self._first[pair.case.name]
            for ids in (pair.by_method.ids, pair.plain.ids):
                if ids != first:
                    same = zip(ids, first, strict=False)
                    place = next((n for n, (a, b) in enumerate(same) if a != b), min(len(ids), len(first)))
                    return f"{pair.case.name} token {place}"
        return ""


def _ask(engine: Engine, case: Case, speculate: bool) -> Answer:
    params = SamplingParams(
        temperature=0.0, max_tokens=case.most_tokens, ignore_eos=case.ignore_eos, speculate=speculate
    )
    tokens: list[Token] = []
    text, finish = "", None
    for event in engine.submit(case.request, params):
        if isinstance(event, Text | Reasoning | Finish):
            tokens.extend(event.tokens)
        if isinstance(event, Text):
            text += event.text
        if isinstance(event, Finish):
            finish = event
    if finish is None or not tokens:
        raise CheckFailed(f"{case.name}: the model gave no token")
    return Answer(tuple(token.id for token in tokens), text, finish.timings.decode_s, finish.drafts or Drafts())
