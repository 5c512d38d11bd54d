"""Counts of speculation: of one sequence, of one engine, and the alarm for drafts that are hardly ever right.

A wrong block layout, tap or norm crashes nothing: acceptance collapses, and that is all there is to see. Hence the
alarm. Plain steps are measured by the way, so that a gain can be told from this session's own numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata_engine.events import Drafts, Notice

ALARM_ROUNDS, ALARM_LENGTH = 200, 1.3
_KEPT_TIMES = 33  # plain steps of one batch width whose median counts; odd, so that it is one of them


@dataclass
class DraftTally:
    """Rounds, drafts and accepted drafts, as far as they were counted. Steps without drafts are no rounds."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    by_position: list[int] = field(default_factory=list)

    def count(self, drafted: int, accepted: int) -> None:
        """One sequence's part of one step."""
        if drafted <= 0:
            return
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        self.by_position.extend([0] * (accepted - len(self.by_position)))
        for place in range(accepted):
            self.by_position[place] += 1

    @property
    def tokens_per_round(self) -> float:
        """1 + accepted drafts a round: the corrected or following token comes for nothing."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0

    def data(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "by_position": list(self.by_position),
            "tokens_per_round": round(self.tokens_per_round, 4),
        }


@dataclass
class SequenceMeter:
    """Speculation of one sequence, counted step by step. `plain_s`: seconds of a plain step of so many sequences."""

    plain_s: Callable[[int], float | None]
    steps: int = 0
    tally: DraftTally = field(default_factory=DraftTally)
    _tokens: dict[int, int] = field(default_factory=dict)  # by the number of sequences in their steps

    def count(self, drafted: int, accepted: int, batch: int) -> None:
        """One decode step of `batch` sequences that kept `accepted` drafts of this one and one token more."""
        self.steps += 1
        self.tally.count(drafted, accepted)
        self._tokens[batch] = self._tokens.get(batch, 0) + accepted + 1

    def drafts(self) -> Drafts:
        """What the end of the sequence tells, by the plain steps measured until now."""
        tally = self.tally
        times = [(count, self.plain_s(batch)) for batch, count in self._tokens.items()]
        known = [count * plain_s for count, plain_s in times if plain_s is not None]
        plain_s = sum(known) if known and len(known) == len(times) else None
        return Drafts(self.steps, tally.rounds, tally.drafted, tally.accepted, tuple(tally.by_position), plain_s)


class SpecMeter:
    """Speculation of one engine since it was opened.

    `facts`: what each drafter says of itself (Drafter.report), for the alarm and the report. `unalarmed`: drafters
    whose acceptance is a matter of the text alone (lookup in `auto`), so that a low one is no sign of a fault.
    """

    def __init__(self, facts: Mapping[str, Mapping[str, Any]], unalarmed: Collection[str] = ()) -> None:
        self.total = DraftTally()
        self.steps = self.tokens = 0
        self._facts = facts
        self._unalarmed = set(unalarmed)  # grows: each drafter alarms once
        self._by_drafter: dict[str, DraftTally] = {}
        self._last: dict[str, deque[int]] = {}  # drafter -> drafts kept in its last rounds
        self._plain: dict[int, deque[float]] = {}  # sequences in the step -> seconds of plain steps
        self._median: dict[int, float] = {}

    def plain_step(self, batch: int, step_s: float) -> None:
        """A step of `batch` sequences, one row each, no drafts and no prompt rows."""
        times = self._plain.setdefault(batch, deque(maxlen=_KEPT_TIMES))
        times.append(step_s)
        self._median[batch] = sorted(times)[(len(times) - 1) // 2]

    def plain_s(self, batch: int) -> float | None:
        """Seconds of a plain step of so many sequences: the median of the last ones; None before the first."""
        return self._median.get(batch)

    def count(self, drafter: str, drafted: Sequence[int], accepted: Sequence[int]) -> Notice | None:
        """One step: drafts verified and kept of each decoding sequence. The alarm when it goes off, else None."""
        self.steps += len(drafted)
        self.tokens += len(accepted) + sum(accepted)
        for given, kept in zip(drafted, accepted, strict=True):
            self.total.count(given, kept)
            if given:
                self._by_drafter.setdefault(drafter, DraftTally()).count(given, kept)
                self._last.setdefault(drafter, deque(maxlen=ALARM_ROUNDS)).append(kept)
        return self._alarm(drafter)

    def _alarm(self, drafter: str) -> Notice | None:
        last = self._last.get(drafter, ())
        if drafter in self._unalarmed or len(last) < ALARM_ROUNDS:
            return None
        length = 1 + sum(last) / len(last)
        if length >= ALARM_LENGTH:
            return None
        self._unalarmed.add(drafter)
        facts = ", ".join(f"{name} {value}" for name, value in self._facts.get(drafter, {}).items())
        text = (
            f"{length:.2f} tokens a round over {len(last)} rounds (below {ALARM_LENGTH}): drafts are hardly ever right"
        )
        ways = "it may not belong to this model, or is laid out otherwise than taken here; --spec none switches it off"
        return Notice("spec_alarm", f"drafter {drafter}{f' ({facts})' if facts else ''}: {text}; {ways}")

    def totals(self) -> dict[str, Any]:
        """The `spec_*` fields of Load."""
        total = self.total
        return {
            "spec_rounds_total": total.rounds,
            "spec_drafted_total": total.drafted,
            "spec_accepted_total": total.accepted,
            "spec_by_position_total": tuple(total.by_position),
            "spec_steps_total": self.steps,
            "spec_tokens_total": self.tokens,
        }

    def data(self) -> dict[str, Any]:
        """Plain JSON data for the report: totals, each drafter's, and the measured plain steps in ms by width."""
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            **self.total.data(),
            "by_drafter": {name: tally.data() for name, tally in list(self._by_drafter.items())},
            "plain_step_ms": {str(batch): round(1e3 * s, 4) for batch, s in sorted(list(self._median.items()))},
        }
