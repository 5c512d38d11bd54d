"""What runs next: one decode row for each running sequence, then prompt chunks, up to a number of rows.

Waiting sequences are admitted in order of arrival when their pages are free. When pages run out the youngest running
sequence gives its pages back and computes them again later; the oldest always goes on, so every sequence ends. Not
thread-safe: the engine holds one lock around every call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from strata_engine.core.sequence import DONE, RUNNING, WAITING, Sequence
from strata_engine.errors import ContextExceeded, OutOfMemory, QueueFull
from strata_engine.memory.memory import Memory


@dataclass(frozen=True)
class SchedulerLimits:
    """Sequences that run at once, sequences that wait beside them, rows of one step, longest sequence."""

    max_sequences: int
    max_queue: int
    batch_rows: int
    context_tokens: int


@dataclass(frozen=True)
class Piece:
    """The next `count` rows of a sequence; `last`: after them its next token can be chosen.

    `room`: pages are reserved for so many drafts behind them. `drafts`: guessed ids, a row each.
    """

    sequence: Sequence
    count: int
    last: bool
    room: int = 0
    drafts: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of the forward, those of drafts too."""
        return self.count + len(self.drafts)

    @property
    def logits(self) -> int:
        """How many of the last rows want logits: with drafts the one before the first of them, too."""
        return 1 + len(self.drafts) if self.last else 0

    @property
    def decodes(self) -> bool:
        """Is it the one row after a generated token?"""
        return self.last and self.count == 1 and self.sequence.generated > 0


@dataclass(frozen=True)
class Work:
    """One step: rows to run, sequences that can never fit (already released), and those preempted for others."""

    pieces: tuple[Piece, ...]
    impossible: tuple[Sequence, ...] = ()
    preempted: tuple[Sequence, ...] = ()


class Scheduler:
    """Waiting and running sequences over one Memory."""

    def __init__(self, memory: Memory, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.preemptions = 0
        self._memory = memory
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._arrivals = 0
        self._preempted: list[Sequence] = []  # in this step

    @property
    def waiting(self) -> int:
        """Sequences not admitted, preempted ones included."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences that hold pages."""
        return len(self._running)

    @property
    def busy(self) -> bool:
        """Is there anything to run?"""
        return bool(self._waiting or self._running)

    def sequences(self) -> Iterator[Sequence]:
        """All that are not done, running ones first."""
        yield from self._running
        yield from self._waiting

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in the line. Raises ContextExceeded, OutOfMemory or QueueFull; nothing changed then."""
        limits, prompt = self.limits, len(sequence.tokens)
        if prompt >= limits.context_tokens:
            raise ContextExceeded(
                f"the prompt has {prompt} tokens, the context holds {limits.context_tokens} "
                f"and the answer needs at least one",
                hint="shorten the prompt or load the model with a larger context (--ctx)",
                details={"n_prompt_tokens": prompt, "n_ctx": limits.context_tokens},
            )
        if self._memory.pages_for(prompt + 1) > self._memory.pool.total:
            raise self.too_large(sequence)
        free_places = max(0, limits.max_sequences - len(self._running))
        if len(self._waiting) >= limits.max_queue + free_places:
            raise QueueFull(
                f"{len(self._waiting)} sequences wait and {len(self._running)} run; the queue holds {limits.max_queue}",
                hint="try again later",
                details={"waiting": len(self._waiting), "max_queue": limits.max_queue},
            )
        self._arrivals += 1
        sequence.order = self._arrivals
        sequence.state = WAITING
        self._waiting.append(sequence)

    def too_large(self, sequence: Sequence) -> OutOfMemory:
        """The error of a sequence that the whole cache cannot hold."""
        room = self._memory.pool.total * self._memory.page_tokens
        text = f"a sequence of {len(sequence.tokens)} tokens does not fit the cache of {room} tokens"
        return OutOfMemory(text, details={"tokens": len(sequence.tokens), "cache_tokens": room})

    def cancel(self, sequence_id: str) -> bool:
        """Mark a sequence; take_cancelled hands it out. False when it is not here (any more)."""
        for sequence in self.sequences():
            if sequence.id == sequence_id:
                sequence.cancelled = True
                return True
        return False

    def take_cancelled(self) -> list[Sequence]:
        """Remove and return cancelled sequences; their pages are free afterwards."""
        found = [s for s in self.sequences() if s.cancelled]
        for sequence in found:
            self.finish(sequence)
        return found

    def finish(self, sequence: Sequence, keep: bool = True) -> None:
        """Remove a sequence and free its pages. Does nothing the second time. `keep`: others may share what it read."""
        if sequence.state == DONE:
            return
        (self._running if sequence.state == RUNNING else self._waiting).remove(sequence)
        self._memory.retire(sequence, keep)
        sequence.state = DONE

    def next(self) -> Work | None:
        """Choose the rows of the next step; their pages are reserved. None when there is nothing to run."""
        self._preempted = []
        pieces, impossible = self._decode_pieces()
        if len(pieces) < len(self._running) or self._waiting:
            for piece in pieces:
                self._memory.enter(piece.sequence)
        left = self.limits.batch_rows - len(pieces)
        self._admit(left)
        if self._waiting and not self._running:  # the whole cache is free and still too small for the first in line
            impossible.append(self._waiting[0])
            self.finish(self._waiting[0])
        pieces += self._prompt_pieces(left, {piece.sequence.id for piece in pieces})
        if not pieces and not impossible:
            return None
        return Work(tuple(pieces), tuple(impossible), tuple(self._preempted))

    def _prompt_pieces(self, left: int, decoding: Collection[str]) -> list[Piece]:
        """Chunks of prompts in order, up to `left` rows. A prompt waits for one before it that begins alike."""
        pieces: list[Piece] = []
        reading: list[Sequence] = []
        for sequence in self._running:
            if sequence.id in decoding or not left:
                continue
            self._memory.catch_up(sequence)
            if any(self._memory.awaits(sequence, other) for other in reading):
                continue
            reading.append(sequence)
            count = self._memory.until(sequence.hold, min(left, sequence.pending))
            pieces.append(Piece(sequence, count, count == sequence.pending))
            left -= count
        return pieces

    def _decode_pieces(self) -> tuple[list[Piece], list[Sequence]]:
        pieces: list[Piece] = []
        impossible: list[Sequence] = []
        for sequence in sorted(self._running, key=lambda s: s.order):
            if sequence.state != RUNNING or sequence.pending != 1:
                continue  # preempted for an older one just now, or still in its prompt
            while not self._memory.reserve(sequence.hold, 1):
                youngest = max(self._running, key=lambda s: s.order)
                if youngest is sequence and len(self._running) == 1:
                    self.finish(sequence)
                    impossible.append(sequence)
                    break
                self._preempt(youngest)
                if youngest is sequence:
                    break
            if sequence.state == RUNNING:
                pieces.append(Piece(sequence, 1, True))
        return pieces, impossible

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._memory.retire(sequence)
        sequence.state = WAITING
        sequence.preemptions += 1
        self.preemptions += 1
        self._preempted.append(sequence)
        self._waiting.appendleft(sequence)  # the youngest goes first, so an older one lands before it

    def _admit(self, rows_left: int) -> None:
        """Admit in order while places, rows and pages allow. All pages of the prompt are reserved at once."""
        unread = sum(s.pending for s in self._running if s.pending > 1)  # prompt rows that will take this step's rows
        while self._waiting and len(self._running) < self.limits.max_sequences and unread < rows_left:
            sequence = self._waiting[0]
            # one more than the tokens: the first decode step must not preempt what was just computed
            wanted = min(len(sequence.tokens) + 1, max(len(sequence.tokens), sequence.limit_tokens - 1))
            if not self._memory.admit(sequence, wanted):
                return
            self._waiting.popleft()
            sequence.state = RUNNING
            self._running.append(sequence)
            unread += sequence.pending

    def make_room(self, pieces: Collection[Piece], most: int, rows: int) -> list[int]:
        """For how many drafts behind each of these decoding pieces there is room, up to `most`; pages are reserved.

        `rows`: of the whole step so far. Drafts take what nobody else wants: rows that are left, pages that are free
        while nobody waits for any, and positions that the answer can still reach.
        """
        left, found = self.limits.batch_rows - rows, []
        for done, piece in enumerate(pieces):
            sequence, hold = piece.sequence, piece.sequence.hold
            pages = len(hold.pages) + (0 if self._waiting else self._memory.pool.free)
            fits = pages * self._memory.page_tokens - hold.tokens - 1
            reach = sequence.limit_tokens - len(sequence.tokens) - 1
            room = max(0, min(most, fits, reach, left // (len(pieces) - done)))
            if room and not self._memory.reserve(hold, 1 + room):
                room = 0
            left -= room
            found.append(room)
        return found

    def keep(self, piece: Piece, accepted: int) -> None:
        """The first `accepted` drafts of a piece stand: they count, and the rest of its room is given back."""
        if piece.sequence.state == RUNNING:
            self._memory.commit(piece.sequence.hold, accepted, keep=0)
            self._memory.trim(piece.sequence.hold)

    def done(self, pieces: Iterable[Piece]) -> None:
        """The pieces were computed: their keys and values count from now on, those of drafts only with `keep`."""
        for piece in pieces:
            if piece.sequence.state == RUNNING:
                self._memory.commit(piece.sequence.hold, piece.count)
                self._memory.settle(piece.sequence)
