"""Drafting by lookup: what followed the last tokens when they stood in this sequence before. No weights, no features.

A Drafter over an index of each sequence's own tokens; nothing is shared between sequences. An index catches up when it
is asked, so a sequence that is never drafted for costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from strata_engine.draft.base import Ask, DraftRoom, Features, Proposal, Seen, Wants
from strata_engine.memory.kv import LayerMemory

LEAST_MATCH = 3  # shorter matches are chance


class Index(Protocol):
    """The tokens of one sequence, searchable."""

    count: int  # tokens in it

    @property
    def index_bytes(self) -> int:
        """Bytes of the state."""
        ...

    def extend(self, tokens: Sequence[int]) -> None:
        """Take `tokens[count:]` in. `tokens`: all of the sequence, of which the first `count` are known."""
        ...

    def propose(self, tokens: Sequence[int], most: int) -> Proposal:
        """At most `most` tokens that may follow `tokens`, all of which are taken in."""
        ...


class LookupDrafter:
    """A Drafter that looks the drafts up in an index of each sequence."""

    wants = Wants()

    def __init__(self, name: str, most: int, make_index: Callable[[], Index]) -> None:
        self.name, self.most = name, most
        self._make, self._indices = make_index, dict[str, Index]()

    def memory(self) -> list[LayerMemory | None]:
        """It has no layers."""
        return []

    def bind(self, room: DraftRoom) -> None:
        """It needs nothing of the engine."""

    def plan(self) -> None:
        """Nothing runs on a device."""

    def prepare(self, depth: int) -> None:
        """Nothing: it runs no steps."""

    def observe(self, seen: Sequence[Seen], features: Features | None) -> None:
        """Nothing: the tokens are read when a draft is wanted."""

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """One proposal for each ask; () where the last tokens never stood in the sequence before."""
        return [self._propose(ask) for ask in asks]

    def _propose(self, ask: Ask) -> Proposal:
        tokens = ask.sequence.tokens
        index = self._indices.get(ask.sequence.id)
        if index is None or index.count > len(tokens):
            index = self._indices[ask.sequence.id] = self._make()
        index.extend(tokens)
        return index.propose(tokens, min(ask.most, self.most))

    def forget(self, sequence_id: str) -> None:
        """Drop the index of a sequence."""
        self._indices.pop(sequence_id, None)

    @property
    def recorded(self) -> int:
        """Steps of its own that were recorded so far."""
        return 0

    def report(self) -> dict[str, Any]:
        """Bytes of the indices of the sequences that run now."""
        return {"index_bytes": sum(index.index_bytes for index in self._indices.values())}


def confidences(match: int, count: int) -> tuple[float, ...]:
    """How sure each of `count` drafts is that continue a match of `match` tokens: the match grows with each.

    A scale, not a probability: the controller measures how often drafts of each class are right.
    """
    return SURE[match : match + count]


SURE = tuple(match / (match + 2.0) for match in range(160))  # by length of the match
