"""What drafters with a chain over the target's states have in common: they keep the states, and guess when asked.

Row S takes a state of the target's token S and token S + 1, and gives a guess of token S + 2. So the row of the last
computed token takes the anchor, whose own forward has not run, and gives the first draft; each further row takes the
draft before it and what the row before it left. What was guessed is run again with the target's states once the target
has seen it (backlog.py). Guesses are the most probable tokens, for seeded sequences too: the target's own choice
decides whether they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata_engine.core.sequence import Sequence as TokenSequence
from strata_engine.draft.backlog import Backlog, Feed
from strata_engine.draft.base import Ask, DraftRoom, Features, Proposal, Seen, Wants
from strata_engine.draft.chain import Chain, Known, Link, Room
from strata_engine.memory.kv import LayerMemory


class HeadDrafter:
    """The chain over one link and the rows it has not read."""

    name = ""
    wants = Wants(final=True)

    def __init__(
        self,
        link: Link,
        kept: LayerMemory,
        most: int,
        p_min: float = 0.0,
        targets: NDArray[np.int32] | None = None,
    ) -> None:
        """`kept`: by the link's layer. `targets` [V]: the target's token of each of the link's ids; None: the same."""
        self.most = most
        self._link, self._kept, self._p_min, self._targets = link, kept, p_min, targets
        self._chain: Chain | None = None
        self._backlog = Backlog(link.states_width, 1)
        self._page_tokens = 1

    def memory(self) -> list[LayerMemory | None]:
        """Keys and values of its layer."""
        return [self._kept]

    def bind(self, room: DraftRoom) -> None:
        """Take the caches and make the buffers."""
        own = Room(room.caches, room.page_tokens, room.limits, self.most)
        self._chain = Chain(self._link, room.ops, own)
        self._ops, self._page_tokens = room.ops, room.page_tokens
        self._backlog = Backlog(self._link.states_width, room.page_tokens, self.name)

    def plan(self) -> None:
        """Record chains of all kinds into ops that only plan."""
        self._bound.plan()

    def prepare(self, depth: int) -> None:
        """Record chains of so many guesses."""
        self._bound.prepare(depth)

    def observe(self, seen: Sequence[Seen], features: Features | None) -> None:
        """Keep the states of the rows; read them when there are enough for a whole step."""
        if not seen:
            return
        left = None if features is None else features.taps if self.wants.taps else features.final
        assert left is not None, "it wants them"
        states = self._ops.host(left, read=True)
        for one in seen:
            self._backlog.add(one.sequence, one.start, states[one.first_row : one.first_row + one.count])
            while self._backlog.unread(one.sequence) >= self._bound.limits.rows:
                self._read(one.sequence, self._bound.limits.rows)

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """A chain of guesses for each sequence whose states are all here; nothing for the others."""
        found = [Proposal(())] * len(asks)
        able = [at for at, ask in enumerate(asks) if ask.most > 0 and self._backlog.complete(ask.sequence)]
        if not able:
            return found
        chosen = [asks[at] for at in able]
        self._make_room(chosen)
        known = [self._known(self._backlog.take(ask.sequence), min(ask.most, self.most)) for ask in chosen]
        ids, shares = self._bound.guess(known, max(one.most for one in known))
        ids = ids if self._targets is None else self._targets[ids]
        for at, one, own, sure in zip(able, known, ids.T.tolist(), shares.T.tolist(), strict=True):
            kept = next((n for n, share in enumerate(sure[: one.most]) if share < self._p_min), one.most)
            found[at] = Proposal(tuple(own[:kept]), tuple(sure[:kept]))
        return found

    def forget(self, sequence_id: str) -> None:
        """Drop what is kept of a sequence."""
        self._backlog.forget(sequence_id)

    @property
    def recorded(self) -> int:
        """Steps of its own that were recorded so far."""
        return 0 if self._chain is None else self._chain.recorded

    def report(self) -> dict[str, Any]:
        """Its shape."""
        found = {"layers": 1, "states_width": self._link.states_width, "n_max": self.most}
        chain = self._chain
        return found if chain is None else {**found, "recorded_steps": chain.recorded, "buffers": chain.buffer_bytes}

    @property
    def _bound(self) -> Chain:
        if self._chain is None:
            raise RuntimeError("the drafter is not bound to an engine's memory")
        return self._chain

    def _make_room(self, asks: Sequence[Ask]) -> None:
        """Read rows until those that are left fit into one step, at least one for each sequence."""
        rows = self._bound.limits.rows
        for ask in asks:
            over = sum(max(1, self._backlog.unread(one.sequence)) for one in asks) - rows
            if over <= 0:
                return
            if (surplus := min(over, self._backlog.unread(ask.sequence) - 1)) > 0:
                self._read(ask.sequence, surplus)

    def _read(self, sequence: TokenSequence, count: int) -> None:
        self._bound.feed([self._known(self._backlog.take(sequence, count))])

    def _known(self, feed: Feed, most: int = 1) -> Known:
        first = feed.start + 1  # each row takes the token after its own
        ids = feed.sequence.tokens[first : first + feed.count]
        return Known(ids, feed.start - feed.base, feed.pages(self._page_tokens), feed.rows, most)
