"""What a controller decides before a step and learns after it. Plain numbers, no clock, no drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from strata_engine.draft.base import Proposal


@dataclass(frozen=True)
class Load:
    """A step about to run: sequences that decode in it, and the tokens of the longest of them.

    `mixed`: prompt rows run beside them, so that its time says little of decoding.
    """

    batch: int
    context: int
    mixed: bool = False


@dataclass(frozen=True)
class Plan:
    """Which drafter guesses how deep. `drafter` None or depth 0: plain decoding."""

    drafter: str | None = None
    depth: int = 0


@dataclass(frozen=True)
class Round:
    """What a step with this plan came to, entry by entry of the sequences that decoded in it.

    `drafted`: drafts that were judged; those behind the end of an answer are left out, so a draft that is not accepted
    was wrong. `proposals`: what was given, before it was cut. Seconds: `draft_s` of the drafter, feeding it included,
    `step_s` of the target's forward, `host_s` of choosing tokens and telling them.
    """

    plan: Plan
    load: Load
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    proposals: tuple[Proposal, ...]
    draft_s: float
    step_s: float
    host_s: float


class Control(Protocol):
    """Chooses drafter and depth step by step."""

    def choose(self, load: Load) -> Plan:
        """The plan of the next step."""
        ...

    def cut(self, plan: Plan, proposals: Sequence[Proposal]) -> list[int]:
        """How many drafts of each proposal to verify."""
        ...

    def record(self, done: Round) -> None:
        """A step that went well. Plain ones are told, too: `plan.drafter` is None then."""
        ...


class FixedControl:
    """Always the same drafter and depth."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def choose(self, load: Load) -> Plan:
        """The one plan."""
        return self._plan

    def cut(self, plan: Plan, proposals: Sequence[Proposal]) -> list[int]:
        """All drafts."""
        return [len(proposal.tokens) for proposal in proposals]

    def record(self, done: Round) -> None:
        """Learns nothing."""
