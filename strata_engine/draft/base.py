"""What a drafter is: it guesses the tokens that come next, and the target's own forward decides which of them stand.

Main flow of a step: the engine asks `propose` for guesses, runs the anchor (the last token) and the guesses of every
sequence as rows of one forward, lets each sequence choose its tokens row by row, and tells the drafter by `observe`
which rows are kept. A drafter may be wrong as often as it likes: no guess changes an answer, it only costs rows.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from strata_engine.config import EngineConfig
from strata_engine.core.batch import BatchLimits
from strata_engine.core.sequence import Sequence
from strata_engine.formats.base import WeightSource
from strata_engine.memory.kv import LayerMemory
from strata_engine.models.base import Model
from strata_engine.text.base import TextRules
from strata_kernels.ops import Array, Ops


@dataclass(frozen=True)
class Ask:
    """One sequence that will decode in the coming step, and for how many drafts (at least 1) there is room.

    `sequence.tokens[-1]` is the anchor: its forward has not run, so `hold.tokens == len(tokens) - 1`. Pages are
    reserved for the anchor and `most` rows more (not yet when a lookup is asked, which has no layers).
    """

    sequence: Sequence
    most: int


@dataclass(frozen=True)
class Proposal:
    """Drafts for positions `len(sequence.tokens)`, ...; none: nothing worth trying.

    `confidence`: the top probability of each, where the drafter knows it.
    """

    tokens: tuple[int, ...] = ()
    confidence: tuple[float, ...] = ()


@dataclass(frozen=True)
class Seen:
    """Rows of one sequence that have just run and are kept: `count` positions from `start`.

    `sequence.tokens` holds the token chosen after the last of them already, so the token after every one is known;
    only after a chunk in the middle of a prompt it is the prompt's. `first_row`: the features' row of `start`.
    """

    sequence: Sequence
    start: int
    count: int
    first_row: int


@dataclass(frozen=True)
class Wants:
    """What the target's forward must leave for a drafter, for every row.

    `final`: what a draft head takes. `taps`: layers after which the residual stream is kept, from 0, ascending.
    """

    final: bool = False
    taps: tuple[int, ...] = ()

    @property
    def anything(self) -> bool:
        """Does the forward leave anything?"""
        return self.final or bool(self.taps)

    def joined(self, other: Wants) -> Wants:
        """What both want."""
        return Wants(self.final or other.final, tuple(sorted({*self.taps, *other.taps})))


@dataclass(frozen=True)
class Features:
    """What the target's forward left, of all rows of a step. Valid only during the call that hands it over.

    `final` f32 [R, F]: after the final norm; of a model with several residual streams these, F = streams * W.
    `taps` f32 [R, len(wants.taps) * W]: the residual stream after each layer asked for, in ascending order.
    """

    final: Array | None = None
    taps: Array | None = None


@dataclass(frozen=True)
class DraftRoom:
    """What a drafter gets before its first step: its own layers' caches, in the order of `memory()`, and the limits."""

    caches: tuple[Any, ...]
    ops: Ops
    limits: BatchLimits
    page_tokens: int


class Drafter(Protocol):
    """Guesses of one kind for all sequences of an engine. Used from the engine's thread only."""

    @property
    def name(self) -> str:
        """As the user asked for it: "mtp", "ngram", ..."""
        ...

    @property
    def most(self) -> int:
        """Deepest useful chain of drafts."""
        ...

    @property
    def wants(self) -> Wants:
        """What the target's forward must leave for it."""
        ...

    @property
    def recorded(self) -> int:
        """Steps of its own that were recorded so far: the time of a proposal that recorded one says nothing."""
        ...

    def memory(self) -> list[LayerMemory | None]:
        """What its own layers keep of a sequence. They share the sequence's pages and slot with the target's layers."""
        ...

    def bind(self, room: DraftRoom) -> None:
        """Called once, after the memory is made."""
        ...

    def plan(self) -> None:
        """Record a step of each kind that can come into ops that only plan; nothing where it runs none."""
        ...

    def prepare(self, depth: int) -> None:
        """Record what proposing so many drafts for one sequence will need, before it is asked to."""
        ...

    def observe(self, seen: typing.Sequence[Seen], features: Features | None) -> None:
        """Rows that are kept, after every step, chunks of prompts included. `features`: None when it wants none."""
        ...

    def propose(self, asks: typing.Sequence[Ask]) -> list[Proposal]:
        """One proposal for each ask, at most `ask.most` tokens long."""
        ...

    def forget(self, sequence_id: str) -> None:
        """The sequence ended or gave its pages up; it may be read again from its beginning. Unknown ids are fine."""
        ...

    def report(self) -> dict[str, Any]:
        """Size, block, layout, taps: what a report says of it, as plain JSON data."""
        ...


@dataclass(frozen=True)
class DraftContext:
    """What a drafter is opened with. `draft`: the file or directory of its own weights, if one was named."""

    model: Model
    source: WeightSource
    ops: Ops
    config: EngineConfig
    rules: TextRules
    draft: Path | None = None

    @property
    def vocab_size(self) -> int:
        """Rows of the target's head: drafts are ids below it."""
        return self.model.config.vocab_size


OpenDrafter = typing.Callable[[DraftContext], Drafter]
"""Raises UsageError naming both values when something does not fit the target, NotFound, CorruptFile."""
