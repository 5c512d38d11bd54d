"""Drives a drafter beside a target without scheduler or engine: the test chooses which tokens follow, not the model.

So drafts are looked at by themselves: whatever was guessed before, the rows that run are those of the given tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from strata_engine.core.batch import BatchLimits, Span
from strata_engine.core.sequence import Sequence as TokenSequence
from strata_engine.draft.base import Ask, Drafter, DraftRoom, Proposal, Seen
from strata_engine.memory.memory import Memory
from strata_engine.models.base import Model
from strata_engine.runtime.executor import Executor
from strata_kernels.ops import Ops

PAGE = 8


class Stage:
    """A target and a drafter over one memory."""

    def __init__(
        self, model: Model, drafter: Drafter, ops: Ops, rows: int = 16, sequences: int = 4, kv_type: str = "f32"
    ) -> None:
        layers = model.memory()
        self.drafter, self.memory = (
            drafter,
            Memory([*layers, *drafter.memory()], 64, PAGE, kv_type, ops.zeros, sequences, drafter.most),
        )
        limits = BatchLimits(rows, sequences, 256, sequences)
        self.executor = Executor(model, ops, self.memory, limits, wants=drafter.wants)
        drafter.bind(DraftRoom(self.memory.caches[len(layers) :], ops, limits, PAGE))

    def start(self, name: str, prompt: Sequence[int]) -> TokenSequence:
        """A sequence of which nothing has run."""
        return TokenSequence(name, list(prompt), len(prompt), 256)

    def read(self, sequence: TokenSequence, following: int, chunk: int = 16) -> None:
        """Run the whole prompt; `following` is the token that comes after it."""
        while sequence.pending:
            count = min(chunk, sequence.pending)
            if count == sequence.pending:
                sequence.tokens.append(following)
                self._run([(sequence, count)])
                return
            self._run([(sequence, count)])

    def advance(self, *steps: tuple[TokenSequence, Sequence[int]]) -> None:
        """One step in which each sequence runs its anchor and all but the last of the given tokens, which follow."""
        for sequence, tokens in steps:
            assert sequence.pending == 1
            sequence.tokens.extend(tokens)
        self._run([(sequence, len(tokens)) for sequence, tokens in steps])

    def propose(self, most: int, *sequences: TokenSequence) -> list[Proposal]:
        """Drafts for decoding sequences; room is reserved as the engine does."""
        for sequence in sequences:
            assert sequence.pending == 1 and self.memory.reserve(sequence.hold, 1 + most)
        return self.drafter.propose([Ask(sequence, most) for sequence in sequences])

    def drop(self, sequence: TokenSequence) -> None:
        """End a sequence."""
        self.memory.release(sequence.hold)
        self.drafter.forget(sequence.id)

    def _run(self, parts: Sequence[tuple[TokenSequence, int]]) -> None:
        spans, seen, row = [], [], 0
        for sequence, count in parts:
            hold = sequence.hold
            assert self.memory.reserve(hold, count)
            spans.append(
                Span(sequence.tokens[hold.tokens : hold.tokens + count], hold.tokens, hold.pages, 0, hold.slot)
            )
            seen.append(Seen(sequence, hold.tokens, count, row))
            row += count
        self.executor.run(spans)
        for sequence, count in parts:
            self.memory.commit(sequence.hold, count)
        self.drafter.observe(seen, self.executor.features(row))
