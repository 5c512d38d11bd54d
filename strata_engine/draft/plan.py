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
    forward and all that a plain step has too, `recording_s` of it for recording a new shape. `comparable`: no rows of
    prompts were in the step. `draft_timed`: the drafter recorded no shape of its own.
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
    recording_s: float = 0.0

    @property
    def timed(self) -> bool:
        """Does `step_s` say what such a step takes?"""
        return self.comparable and not self.recording_s

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

    def likely(self) -> list[tuple[str, int]]:
        """Drafters and depths whose steps are worth recording before they are needed, the surest first."""
        ...

    def prepared(self, rows: int) -> None:
        """A step of so many rows of one sequence was recorded."""
        ...

    def started(self) -> None:
        """A new sequence decodes from now on."""
        ...

    def choose(self, load: Load, names: Sequence[str] | None = None) -> Plan:
        """The plan of the coming step; `names`: the drafters that still work."""
        ...

    def rest(self) -> int:
        """After a step that came to no drafts: for how many more it need not be asked, nor told of them."""
        ...

    def rested(self, steps: int) -> None:
        """So many plain steps went by."""
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

    def __init__(self, depth: int, name: str = "") -> None:
        """`name`: of the first drafter."""
        self._depth, self._name = depth, name

    def likely(self) -> list[tuple[str, int]]:
        """Its only plan."""
        return [(self._name, self._depth)]

    def prepared(self, rows: int) -> None:
        """Changes nothing."""

    def started(self) -> None:
        """Changes nothing."""

    def choose(self, load: Load, names: Sequence[str] | None = None) -> Plan:
        """The depth, of the first of the names."""
        return Plan(names[0], self._depth) if names else Plan()

    def rest(self) -> int:
        """It is always asked."""
        return 0

    def rested(self, steps: int) -> None:
        """Changes nothing."""

    def cut(self, load: Load, name: str, confidence: Sequence[Sequence[float]], drafted: Sequence[int]) -> list[int]:
        """All drafts."""
        return list(drafted)

    def otherwise(self, plan: Plan) -> Plan:
        """Plain decoding."""
        return Plan()

    def record(self, done: Round) -> None:
        """Learns nothing."""
