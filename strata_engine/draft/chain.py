"""A chain of guesses: one feed of known rows, whose last row of each sequence gives the first guess, then one row of
each sequence for every further guess, which takes the guess before it.

The whole chain is one recorded step: the choice of a token is an op of it, and where the later rows go is known before
the first one runs. So it costs the host one call whatever its length. Rows of guesses are provisional: they stand in
the sequences' own pages behind the known rows, and the next feed writes over them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from strata_engine.core.batch import Batch, BatchBuffers, BatchLimits, Span
from strata_engine.core.steps import Steps, edges
from strata_engine.draft.widths import padded
from strata_kernels.ops import Array, KvLayer, Ops, Rows

KEPT_CHAINS = 256  # rows between one and most + 1 of each sequence (widths.padded), times depths

_ONCE = 3


@dataclass(frozen=True)
class Room:
    """What a chain runs in: the drafter's caches, the size of a page, most rows of a step, most guesses."""

    caches: tuple[Any, ...]
    page_tokens: int
    limits: BatchLimits
    most: int


class Link(Protocol):
    """The layers that a chain runs: a draft head, or a small model of its own.

    `states_width`: of the states that a row takes beside its token, of the target at first, then what `forward` left
    for the row before; 0: it takes none.
    """

    @property
    def vocab_size(self) -> int:
        """V."""
        ...

    @property
    def states_width(self) -> int:
        """F, or 0."""
        ...

    def forward(self, batch: Batch, states: Array | None, ops: Ops) -> Array:
        """f32 [n, F] of the rows in `batch.logit_rows`; `states` [R, F]. Takes workspace of the enclosing scope."""
        ...

    def logits(self, left: Array, batch: Batch, ops: Ops, out: Array) -> None:
        """out f32 [n, V] of what `forward` left of `batch`."""
        ...


@dataclass(frozen=True)
class Known:
    """Known rows of one sequence: token `ids` at positions start, start + 1, .. of `pages`.

    `states`: pieces of [n, F] together, where the link takes them. `most`: guesses that its pages have room for.
    """

    ids: Sequence[int]
    start: int
    pages: array[int]
    states: Sequence[NDArray[np.float32]] = ()
    most: int = 1


class Chain:
    """Recorded chains over one link. Not thread-safe, as its Ops."""

    def __init__(self, link: Link, ops: Ops, room: Room) -> None:
        self.limits = limits = room.limits
        self._link, self._ops, self._room = link, ops, room
        self._buffers = BatchBuffers(limits, room.caches, room.page_tokens, ops)
        self._states = ops.zeros(limits.rows, link.states_width) if link.states_width else None
        self._host_states = None if self._states is None else ops.host(self._states)
        self._logits = ops.zeros(limits.sequences, link.vocab_size)
        self._later = _Later(room, ops)
        self._steps = Steps(ops, self._record, KEPT_CHAINS)
        self._asked = dict[tuple[int, int, int], int]()  # how often, of chains that are not recorded

    @property
    def recorded(self) -> int:
        """Steps recorded so far."""
        return self._steps.recorded

    @property
    def buffer_bytes(self) -> int:
        """Bytes of its logits and states."""
        return self._logits.nbytes + (0 if self._states is None else self._states.nbytes)

    def prepare(self, depth: int) -> None:
        """Record the chains of `depth` guesses of one sequence behind the rows that a step may keep."""
        depth = min(depth, self._room.most)
        for rows in sorted({self._padded(count) for count in range(1, 2 + depth)}):
            self._steps.prepare((rows, 1, depth))

    def plan(self) -> None:
        """Record chains of all kinds into ops that only plan."""
        for rows in edges(self.limits.rows):
            self._steps.plan((rows, 0, 0))
            for count in edges(min(rows, self.limits.sequences)):
                self._steps.plan((rows, count, min(2, self._room.most)))

    def feed(self, known: Sequence[Known]) -> None:
        """Run known rows and guess nothing."""
        self._steps.run((self._fill(known, 0), 0, 0))

    def guess(self, known: Sequence[Known], depth: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Token ids [depth, sequences] and the probability that the link gives each; valid until the next call.

        What stands beyond a sequence's `most` means nothing. Raises ValueError for a depth outside 1..most of the room.
        """
        if not 1 <= depth <= self._room.most:
            raise ValueError(f"{depth} guesses, the chain has room for {self._room.most}")
        rows, count = self._fill(known, 1), len(known)
        ran = self._depth_to_run(rows, count, depth)
        if ran > 1:
            self._later.fill(known, ran - 1)
        self._steps.run((rows, count, ran))
        return self._later.host_chosen[:depth, :count], self._later.host_shares[:depth, :count]

    def _depth_to_run(self, rows: int, count: int, depth: int) -> int:
        """A deeper chain that is recorded costs less than recording another one, unless this one comes again and again.

        It is the end of an answer that asks for what is asked once.
        """
        shape = (rows, count, depth)
        if self._steps.knows(shape):
            return depth
        asked = self._asked[shape] = self._asked.get(shape, 0) + 1
        if asked > _ONCE:
            del self._asked[shape]
            return depth
        deeper = range(depth + 1, self._room.most + 1)
        return next((more for more in deeper if self._steps.knows((rows, count, more))), depth)

    def _fill(self, known: Sequence[Known], logits: int) -> int:
        rows, _ = self._buffers.fill([Span(one.ids, one.start, one.pages, logits) for one in known])
        if self._host_states is not None:
            at = 0
            for part in (part for one in known for part in one.states):
                self._host_states[at : at + len(part)] = part
                at += len(part)
            if at != rows:
                raise ValueError(f"{rows} rows with states of {at}")
        return self._pad(rows)

    def _padded(self, rows: int) -> int:
        """Keys of an index are made of rows that follow one another, so there no row may come twice."""
        plain = all(isinstance(cache, KvLayer) for cache in self._room.caches)
        return min(padded(rows) if plain else rows, self.limits.rows)

    def _pad(self, rows: int) -> int:
        """The last row stands again behind itself, to the same keys in the same place, so that few shapes come up."""
        wide = self._padded(rows)
        self._buffers.repeat_last(rows, wide)
        if self._host_states is not None:
            self._host_states[rows:wide] = self._host_states[rows - 1]
        return wide

    def _record(self, shape: tuple[int, int, int]) -> None:
        rows, count, depth = shape
        ops, later = self._ops, self._later
        batch = self._buffers.view(rows, count)
        left = self._link.forward(batch, None if self._states is None else self._states[:rows], ops)
        for step in range(depth):
            if step:
                batch = later.batch(step - 1, count, batch.rows.pages)
                left = self._link.forward(batch, left if self._link.states_width else None, ops)
            with ops.scope():
                logits = self._logits[:count]
                self._link.logits(left, batch, ops, logits)
                ops.argmax(logits, later.chosen[step][:count], later.shares[step][:count])


class _Later:
    """Fixed-address buffers of the guesses, and of the rows that take them."""

    def __init__(self, room: Room, ops: Ops) -> None:
        most, sequences = room.most, room.limits.sequences
        self._caches, self._size = room.caches, room.page_tokens
        self.chosen, self.shares = ops.zeros(most, sequences, dtype="i32"), ops.zeros(most, sequences)
        self.host_chosen, self.host_shares = ops.host(self.chosen, read=True), ops.host(self.shares, read=True)
        self._positions, self._slots = (ops.zeros(most, sequences, dtype="i32") for _ in range(2))
        self._np_positions, self._np_slots = ops.host(self._positions), ops.host(self._slots)
        self._each = ops.zeros(sequences, dtype="i32")
        ops.host(self._each)[:] = np.arange(sequences)

    def fill(self, known: Sequence[Known], rows: int) -> None:
        """Where `rows` rows behind the known ones stand; one beyond its room stands in its last place again."""
        size = self._size
        for at, one in enumerate(known):
            last = one.start + len(one.ids) - 1
            for step in range(rows):
                position = last + 1 + min(step, one.most - 1)
                self._np_positions[step, at] = position
                self._np_slots[step, at] = one.pages[position // size] * size + position % size

    def batch(self, step: int, count: int, pages: Array) -> Batch:
        """The rows that take guess `step` of `count` sequences."""
        each = self._each[:count]
        rows = Rows(self._positions[step][:count], each, self._slots[step][:count], pages)
        return Batch(self.chosen[step][:count], rows, self._caches, each)
