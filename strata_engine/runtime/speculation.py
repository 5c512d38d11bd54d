"""Speculation of one engine: which drafts go into a step, who is told of its rows, and what was learned from it.

A step goes `extend` (drafts for the pieces that decode), the forward, `settle` (kept rows to the drafters, numbers to
the controller). A drafter that raises is switched off for good; its sequences go on without drafts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from strata_engine.draft.base import Ask, Drafter, Features, Proposal, Seen, Wants
from strata_engine.draft.lookup import LookupDrafter
from strata_engine.draft.plan import Control, Load, Plan, Round
from strata_engine.events import Finish, Notice
from strata_engine.runtime.attempt import attempt
from strata_engine.runtime.scheduler import Piece
from strata_engine.runtime.spec_meters import SpecMeter

LOOKUPS = ("ngram", "suffix")
MakeRoom = Callable[[Sequence[Piece], int, int], list[int]]  # Scheduler.make_room under the engine's lock
Record = Callable[[int], bool]  # Executor.prepare


@dataclass(frozen=True)
class Verdict:
    """What became of a piece: drafts that stand, whether the next one was not refused but not wanted any more, whether
    its sequence goes on, and the Finish that is to be told when it does not."""

    piece: Piece
    accepted: int = 0
    ended: bool = False
    alive: bool = True
    finish: Finish | None = None


@dataclass(slots=True)
class _Step:
    """The step that runs now; `decoding`: its sequences that decode, `proposals` by sequence."""

    plan: Plan
    load: Load
    decoding: frozenset[str]
    proposals: dict[str, Proposal] = field(default_factory=dict)
    draft_s: float = 0.0
    recorded: int = 0  # by the drafters, before it
    resting: bool = False  # the controller was not asked and need not be told


@dataclass
class _Offer:
    """What a step may try: the plan whose drafter was asked last, and by sequence: room, proposal, drafts that run."""

    plan: Plan = Plan()
    rooms: dict[str, int] = field(default_factory=dict)
    proposals: dict[str, Proposal] = field(default_factory=dict)
    drafts: dict[str, tuple[int, ...]] = field(default_factory=dict)


class Speculation:
    """The drafters of an engine under one controller. Used from the engine's thread only, once it runs."""

    def __init__(
        self, drafters: Sequence[Drafter] = (), control: Control | None = None, most: int = 0, vocab_size: int = 0
    ) -> None:
        """`most`: deepest chain of drafts in a step. `vocab_size`: drafts are ids below it."""
        self.most = most if drafters and control is not None else 0
        self.notices: list[Notice] = []
        self._told = 0
        self._drafters = {drafter.name: drafter for drafter in drafters} if self.most else {}
        self._control, self._vocab_size = control, vocab_size
        self._wants = wants_of(drafters)
        self._step: _Step | None = None
        # steps that the controller lets pass and has let pass, as long as the same sequences decode
        self._rest = self._rested = 0
        self._rested_ids = frozenset[str]()
        self._ahead: deque[tuple[str, int]] = deque(control.likely() if self.most and control is not None else ())
        # as they were opened: a report is read by other threads
        self._facts = {name: {**drafter.report(), "most": drafter.most} for name, drafter in self._drafters.items()}
        # among several, a lookup that finds little says something of the text only, and the controller parks it
        quiet = LOOKUPS if len(self._facts) > 1 else ()
        self.meter = SpecMeter(self._facts, quiet) if self._facts else None

    @property
    def active(self) -> bool:
        """Is there a drafter that works?"""
        return bool(self._drafters)

    def take_notices(self) -> list[Notice]:
        """Notices that came up since the last call; all of them stay in `notices`."""
        new, self._told = self.notices[self._told :], len(self.notices)
        return new

    def prepare_first(self, record: Record) -> None:
        """Record the steps that a first answer will need, of each drafter that is asked for its own sake."""
        for _ in [
            name for name, drafter in self._drafters.items() if not isinstance(drafter, LookupDrafter)
        ]:  # a control names their depths first
            self.prepare_next(record)

    @property
    def expects_more(self) -> bool:
        """Are there steps that are worth recording before they are needed?"""
        return bool(self._ahead)

    def prepare_next(self, record: Record) -> None:
        """Record the next such steps, of one sequence. One that fails will fail again when it is needed, and say so."""
        if not self._ahead or self._control is None:
            return
        name, depth = self._ahead.popleft()
        drafter, depth = self._drafters.get(name), min(depth, self.most)
        if drafter is None:
            return
        fits, error = attempt(record, 1 + depth)
        if error is None and fits:
            self._control.prepared(1 + depth)
            attempt(drafter.prepare, depth)

    def extend(self, pieces: list[Piece], make_room: MakeRoom) -> list[Piece]:
        """The pieces of a step, those that decode with drafts where the controller wants some."""
        self._step = None
        decoding = [piece for piece in pieces if piece.decodes]
        if self._control is None or not self.active or not decoding:
            return pieces
        extended = self._learned(self._extend, self._control, pieces, decoding, make_room)
        return pieces if extended is None else extended

    def _extend(self, control: Control, pieces: list[Piece], decoding: list[Piece], make_room: MakeRoom) -> list[Piece]:
        load = Load(len(decoding), max(len(p.sequence.tokens) for p in decoding))
        ids, new = frozenset(p.sequence.id for p in decoding), sum(p.sequence.generated == 1 for p in decoding)
        if self._rest > self._rested and not new and ids == self._rested_ids:
            self._rested += 1
            self._step = _Step(Plan(), load, ids, resting=True)
            return pieces
        if self._rested:
            control.rested(self._rested)
        self._rest = self._rested = 0
        for _ in range(new):
            control.started()
        begun, recorded = time.perf_counter(), self._recorded()
        wanting = [p for p in decoding if p.sequence.speculate]
        offer = self._offer(control, load, wanting, make_room, sum(p.rows for p in pieces)) if wanting else _Offer()
        self._step = _Step(offer.plan, load, ids, offer.proposals, time.perf_counter() - begun, recorded)
        if not offer.rooms:
            return pieces
        rooms, drafts = offer.rooms, offer.drafts
        return [
            replace(piece, room=rooms.get(piece.sequence.id, 0), drafts=drafts.get(piece.sequence.id, ()))
            for piece in pieces
        ]

    def _offer(self, control: Control, load: Load, wanting: list[Piece], make_room: MakeRoom, rows: int) -> _Offer:
        """Ask drafter after drafter, as the controller says, until one has drafts that it lets run."""
        plan, offer = control.choose(load, list(self._drafters)), _Offer()
        while plan.drafter is not None and not any(offer.drafts.values()):
            drafter, depth = self._drafters.get(plan.drafter), min(plan.depth, self.most)
            if drafter is not None and depth > 0:
                offer.plan = plan
                if isinstance(drafter, LookupDrafter):
                    self._look_up(control, drafter, offer, (load, wanting, depth))
                else:
                    self._make_room(offer, wanting, depth, make_room, rows)
                    asks = [Ask(p.sequence, min(depth, offer.rooms[p.sequence.id])) for p in wanting]
                    asks = [ask for ask in asks if ask.most]
                    offer.proposals, offer.drafts = self._ask(control, drafter, load, asks)
            plan = control.otherwise(plan)
        if any(offer.drafts.values()) and not offer.rooms:
            self._make_room(offer, wanting, max(map(len, offer.drafts.values())), make_room, rows)
            offer.drafts = {name: drafts[: offer.rooms[name]] for name, drafts in offer.drafts.items()}
        return offer

    @staticmethod
    def _make_room(offer: _Offer, wanting: list[Piece], depth: int, make_room: MakeRoom, rows: int) -> None:
        if not offer.rooms:
            found = make_room(wanting, depth, rows)
            offer.rooms = {p.sequence.id: room for p, room in zip(wanting, found, strict=True)}

    def _look_up(self, control: Control, drafter: Drafter, offer: _Offer, what: tuple[Load, list[Piece], int]) -> None:
        """Ask a drafter that needs no pages: they are reserved only where it finds something."""
        load, wanting, depth = what
        asks = []
        for piece in wanting:
            sequence = piece.sequence
            most = min(depth, sequence.limit_tokens - len(sequence.tokens) - 1)
            if most > 0:
                asks.append(Ask(sequence, most))
        offer.proposals, offer.drafts = self._ask(control, drafter, load, asks)

    def _ask(
        self, control: Control, drafter: Drafter, load: Load, asks: list[Ask]
    ) -> tuple[dict[str, Proposal], dict[str, tuple[int, ...]]]:
        """By sequence: what the drafter proposes, and the drafts to verify."""
        ids = [ask.sequence.id for ask in asks]

        def propose() -> list[Proposal]:
            given = drafter.propose(asks)
            self._check(asks, given)
            return given

        given = self._guarded(drafter, propose) if asks else None
        if not given or not any(proposal.tokens for proposal in given):
            return {}, {}
        confidence = [proposal.confidence for proposal in given]
        depths = control.cut(load, drafter.name, confidence, [len(proposal.tokens) for proposal in given])
        drafts = [proposal.tokens[:depth] for proposal, depth in zip(given, depths, strict=True)]
        return dict(zip(ids, given, strict=True)), dict(zip(ids, drafts, strict=True))

    def _check(self, asks: list[Ask], given: list[Proposal]) -> None:
        """Raises ValueError for proposals that no step can verify (a bug of the drafter)."""
        for ask, proposal in zip(asks, given, strict=True):
            if len(proposal.tokens) > ask.most:
                raise ValueError(f"{len(proposal.tokens)} drafts where {ask.most} were asked for")
            if any(not 0 <= token < self._vocab_size for token in proposal.tokens):
                raise ValueError(f"a draft of {proposal.tokens} is no id below {self._vocab_size}")

    @property
    def batch(self) -> int:
        """Sequences that decode in the step that runs now; 0 in one that is run again after a failure."""
        return self._step.load.batch if self._step else 0

    def drop(self) -> None:
        """The step failed: its times tell nothing."""
        self._step = None

    def settle(
        self, verdicts: Sequence[Verdict], features: Features | None, step_s: float, recording_s: float = 0.0
    ) -> None:
        """The rows of the step ran, tokens were chosen and told: feed the drafters, tell the controller.

        `step_s`: forward, choosing and telling. `recording_s`: how much of it a shape took that was recorded.
        """
        begun = time.perf_counter()
        watching = [drafter for drafter in self._drafters.values() if not isinstance(drafter, LookupDrafter)]
        if watching:
            seen, row = [], 0
            for verdict in verdicts:
                piece, hold = verdict.piece, verdict.piece.sequence.hold
                count = piece.count + verdict.accepted
                if verdict.alive:
                    seen.append(Seen(piece.sequence, hold.tokens - count, count, row))
                row += piece.rows
            for drafter in watching:
                self._guarded(drafter, drafter.observe, seen, self._own(features, drafter.wants))
        self._record(verdicts, time.perf_counter() - begun, step_s, recording_s)

    def _record(self, verdicts: Sequence[Verdict], fed_s: float, step_s: float, recording_s: float) -> None:
        step = self._step
        self._step = None
        if step is None or self._control is None:
            return
        if step.resting:
            if self.meter is not None:
                none = (0,) * len(step.decoding)
                self.meter.count("", none, none)
            return
        own = [v for v in verdicts if v.piece.sequence.id in step.decoding]
        confidence = [step.proposals.get(v.piece.sequence.id, Proposal()).confidence for v in own]
        done = Round(
            step.plan,
            step.load,
            drafted=tuple(len(v.piece.drafts) for v in own),
            accepted=tuple(v.accepted for v in own),
            draft_s=step.draft_s + fed_s,
            step_s=step_s,
            ended=tuple(v.ended for v in own),
            confidence=tuple(known[: len(v.piece.drafts)] for known, v in zip(confidence, own, strict=True)),
            comparable=len(own) == len(verdicts),
            draft_timed=self._recorded() == step.recorded,
            recording_s=recording_s,
        )
        self._count(done)
        self._learned(self._control.record, done)
        if not any(done.drafted) and done.comparable and self._drafters:
            self._rest, self._rested_ids = self._learned(self._control.rest) or 0, step.decoding

    def _recorded(self) -> int:
        return sum(drafter.recorded for drafter in self._drafters.values())

    def _count(self, done: Round) -> None:
        if self.meter is None:
            return
        if not any(done.drafted) and done.timed:
            self.meter.plain_step(done.load.batch, done.step_s)
        alarm = self.meter.count(done.plan.drafter or "", done.drafted, done.accepted)
        if alarm is not None:
            self.notices.append(alarm)

    def _own(self, features: Features | None, wants: Wants) -> Features | None:
        """The part of the features that one drafter wants."""
        if features is None or not wants.anything:
            return None
        taps = features.taps if wants.taps else None
        if taps is not None and wants.taps != self._wants.taps:
            width = taps.shape[1] // len(self._wants.taps)
            own = [self._wants.taps.index(layer) for layer in wants.taps]
            columns = np.concatenate([np.arange(at * width, (at + 1) * width) for at in own])
            taps = taps[:, columns]
        return Features(features.final if wants.final else None, taps)

    def forget(self, sequence_id: str) -> None:
        """A sequence ended or gave its pages up."""
        for drafter in list(self._drafters.values()):
            self._guarded(drafter, drafter.forget, sequence_id)

    def report(self) -> dict[str, Any]:
        """Deepest chain, each drafter's own facts, and what was counted; {} without any. Safe from any thread."""
        if self.meter is None:
            return {}
        return {"n_max": self.most, "drafters": self._facts, "counts": self.meter.data()}

    def _learned(self, action: Callable[..., Any], *args: Any) -> Any:
        """The result of asking the controller; None when it raised: all drafters are switched off then."""
        result, error = attempt(action, *args)
        if error is not None:
            text = f"the choice of drafts failed, decoding goes on without drafts: {error.message}"
            self.notices.append(Notice("spec_off", text))
            self._drafters.clear()
        return result

    def _guarded(self, drafter: Drafter, action: Callable[..., Any], *args: Any) -> Any:
        """The action's result; None when it raised: the drafter is switched off then."""
        result, error = attempt(action, *args)
        if error is not None:
            text = f"drafter {drafter.name} failed and is switched off, decoding goes on without it: {error.message}"
            self.notices.append(Notice("spec_off", text))
            self._drafters.pop(drafter.name, None)
        return result


def wants_of(drafters: Sequence[Drafter]) -> Wants:
    """What the target's forward must leave for all of them."""
    wants = Wants()
    for drafter in drafters:
        wants = wants.joined(drafter.wants)
    return wants
