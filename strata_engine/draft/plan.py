"""What a controller decides before a step and learns after it. Plain numbers, no clock, no drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Load:
    """What the coming step decodes: so many sequences; `context`: tokens of the longest."""

    batch: int
    context: int = 0


@dataclass(frozen=True)
class Plan:
    """Which drafter to ask, for how many drafts a sequence. None: plain decoding. `trial`: against the estimates."""

    drafter: str | None = None
    depth: int = 0
    trial: bool = False


@dataclass(frozen=True)
class Round:
    """What came of a step. One entry a sequence in `drafted`, `accepted`, `ended` and `confidence`.

    `drafted`: drafts that ran as rows; `accepted`: those that stood. `ended`: the sequence ended inside its drafts, so
    the one after the last accepted was not refused. `draft_s`: asking the drafter, and feeding it. `step_s`: the
    forward and all that a plain step has too. `comparable`: the times say something: no rows of prompts in the step, no
    shape that was recorded in it. `draft_timed`: neither did the drafter record one of its own.
    """

    plan: Plan
    load: Load
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    draft_s: float
    step_s: float
    ended: tuple[bool, ...] = ()
    confidence: tuple[tuple[float, ...], ...] = ()
    comparable: bool = True
    draft_timed: bool = True

    @property
    def rows(self) -> int:
        """Rows of the sequences that decode."""
        return self.load.batch + sum(self.drafted)

    @property
    def committed(self) -> int:
        """Tokens that these sequences gained."""
        return self.load.batch + sum(self.accepted)


class Control(Protocol):
    """Chooses drafter and depth step by step. One for an engine; what it learned serves the next sequence."""

    def started(self) -> None:
        """A new sequence decodes from now on."""
        ...

    def choose(self, load: Load, names: Sequence[str] | None = None) -> Plan:
        """The plan of the coming step; `names`: the drafters that still work."""
        ...

    def cut(self, load: Load, name: str, confidence: Sequence[Sequence[float]], drafted: Sequence[int]) -> list[int]:
        """How many of each sequence's drafts to verify, of those that were `drafted`."""
        ...

    def otherwise(self, plan: Plan) -> Plan:
        """Another plan for the step in which `plan` came to no drafts; plain decoding after the last."""
        ...

    def record(self, done: Round) -> None:
        """A step in which sequences decoded, plain ones too."""
        ...


class FixedControl:
    """The same depth in every step, of the first drafter that works."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def started(self) -> None:
        """Changes nothing."""

    def choose(self, load: Load, names: Sequence[str] | None = None) -> Plan:
        """The depth, of the first of the names."""
        return Plan(names[0], self._depth) if names else Plan()

    def cut(self, load: Load, name: str, confidence: Sequence[Sequence[float]], drafted: Sequence[int]) -> list[int]:
        """All drafts."""
        return list(drafted)

    def otherwise(self, plan: Plan) -> Plan:
        """Plain decoding."""
        return Plan()

    def record(self, done: Round) -> None:
        """Learns nothing."""
