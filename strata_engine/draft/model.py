"""Drafts of a small model of its own with the target's vocabulary.

It needs nothing of the target but tokens: whatever it has not read yet (a prompt, a prefix that came from the cache,
what was written while it was parked) it reads from the sequence when it next proposes. Its layers share the sequence's
pages, as if they were layers of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strata_engine.core.batch import Batch, Hidden
from strata_engine.core.sequence import Sequence as TokenSequence
from strata_engine.draft.base import Ask, DraftContext, DraftRoom, Features, Proposal, Seen, Wants
from strata_engine.draft.chain import Chain, Known, Room
from strata_engine.draft.vocabulary import require_same_vocabulary
from strata_engine.errors import UsageError
from strata_engine.formats.base import WeightSource
from strata_engine.formats.open import open_weights
from strata_engine.memory.kv import LayerMemory
from strata_engine.models.base import Model
from strata_engine.models.load import Loaded, load_model
from strata_engine.text.rules import load_text_rules
from strata_kernels.ops import Array, Ops

DEEPEST = 16
USUAL = 4


@dataclass(frozen=True)
class ModelLink:
    """A whole model as the link of a chain: its rows take nothing but their tokens."""

    model: Model
    states_width: int = 0

    @property
    def vocab_size(self) -> int:
        """Rows of its head."""
        return self.model.config.vocab_size

    def forward(self, batch: Batch, states: Array | None, ops: Ops) -> Array:
        """The last residual stream of the rows that want logits."""
        hidden = self.model.forward(batch, ops)
        if hidden.picked:
            return hidden.rows
        picked = ops.take(batch.logit_rows.shape[0], hidden.rows.shape[1])
        ops.gather(hidden.rows, batch.logit_rows, picked)
        return picked

    def logits(self, left: Array, batch: Batch, ops: Ops, out: Array) -> None:
        """out f32 [n, V]."""
        self.model.logits(Hidden(left, picked=True), batch.logit_rows, ops, out)


@dataclass(eq=False)
class _Line:
    """One sequence: its first `read` tokens are read, and behind them `guessed` as if they had come true."""

    read: int
    guessed: list[int] = field(default_factory=list)

    def settle(self, tokens: list[int]) -> None:
        """Count the guesses that came true as read; the rest never were. The last token is always read again."""
        for guess in self.guessed:
            if self.read >= len(tokens) or tokens[self.read] != guess:
                break
            self.read += 1
        self.guessed = []
        self.read = min(self.read, len(tokens) - 1)


class ModelDrafter:
    """The chain over a small model. `source`: kept open, for rows of its embedding may lie in the file."""

    name = "draft"
    wants = Wants()

    def __init__(self, loaded: Loaded, source: WeightSource, vocab_size: int, most: int, p_min: float = 0.0) -> None:
        """`vocab_size`: of the target, which is handed no id beyond it."""
        self.most = most
        self._loaded, self._source, self._vocab_size, self._p_min = loaded, source, vocab_size, p_min
        self._chain: Chain | None = None
        self._lines: dict[str, _Line] = {}

    def memory(self) -> list[LayerMemory | None]:
        """Of all its layers."""
        return self._loaded.model.memory()

    def bind(self, room: DraftRoom) -> None:
        """Take the caches and make the buffers."""
        own = Room(room.caches, room.page_tokens, room.limits, self.most)
        self._chain = Chain(ModelLink(self._loaded.model), room.ops, own)

    def plan(self) -> None:
        """Record chains of all kinds into ops that only plan."""
        self._bound.plan()

    def prepare(self, depth: int) -> None:
        """Record chains of so many guesses."""
        self._bound.prepare(depth)

    def observe(self, seen: Sequence[Seen], features: Features | None) -> None:
        """It reads tokens from the sequences when it proposes."""

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """A chain of guesses for each sequence whose tokens it can read."""
        found = [Proposal()] * len(asks)
        able = [at for at, ask in enumerate(asks) if ask.most > 0 and self._settle(ask.sequence)]
        if not able:
            return found
        chosen = [asks[at] for at in able]
        self._make_room(chosen)
        known = [self._known(ask.sequence, None, min(ask.most, self.most)) for ask in chosen]
        ids, shares = self._bound.guess(known, max(one.most for one in known))
        for at, one, own, sure in zip(able, known, ids.T.tolist(), shares.T.tolist(), strict=True):
            self._lines[asks[at].sequence.id].guessed = own[: one.most - 1]
            kept = self._kept(own[: one.most], sure)
            found[at] = Proposal(tuple(own[:kept]), tuple(sure[:kept]))
        return found

    def forget(self, sequence_id: str) -> None:
        """Drop what is kept of a sequence."""
        self._lines.pop(sequence_id, None)

    @property
    def recorded(self) -> int:
        """Steps of its own that were recorded so far."""
        return 0 if self._chain is None else self._chain.recorded

    def report(self) -> dict[str, Any]:
        """Its size and shape."""
        config, chain = self._loaded.model.config, self._chain
        found = {
            "file": self._source.paths[0].name if self._source.paths else self._source.kind,
            "architecture": config.architecture,
            "parameters": self._loaded.parameters,
            "bytes": self._loaded.packed_bytes,
            "layers": config.layers,
            "n_max": self.most,
        }
        return found if chain is None else {**found, "recorded_steps": chain.recorded, "buffers": chain.buffer_bytes}

    @property
    def _bound(self) -> Chain:
        if self._chain is None:
            raise RuntimeError("the drafter is not bound to an engine's memory")
        return self._chain

    def _kept(self, guesses: list[int], sure: list[float]) -> int:
        """How many of the guesses are worth trying."""
        for number, (guess, share) in enumerate(zip(guesses, sure, strict=False)):
            if guess >= self._vocab_size or share < self._p_min:
                return number
        return len(guesses)

    def _settle(self, sequence: TokenSequence) -> bool:
        """Bring a sequence's line up to date; can its tokens be read? Images cannot, nor ids beyond the table."""
        line = self._lines.get(sequence.id)
        if line is None:
            line = self._lines[sequence.id] = _Line(
                min(sequence.hold.drafted.get(self.name, 0), len(sequence.tokens) - 1)
            )
        line.settle(sequence.tokens)
        return sequence.pictures is None and max(sequence.tokens[line.read :]) < self._loaded.model.config.vocab_size

    def _make_room(self, asks: Sequence[Ask]) -> None:
        """Read tokens until those that are left fit into one step, at least one for each sequence."""
        for ask in asks:
            while (over := sum(self._unread(one.sequence) for one in asks) - self._bound.limits.rows) > 0:
                surplus = min(over, self._unread(ask.sequence) - 1, self._bound.limits.rows)
                if surplus <= 0:
                    break
                self._bound.feed([self._known(ask.sequence, surplus, 1)])

    def _unread(self, sequence: TokenSequence) -> int:
        return len(sequence.tokens) - self._lines[sequence.id].read

    def _known(self, sequence: TokenSequence, count: int | None, most: int) -> Known:
        """The next `count` tokens (None: all that are left), which count as read."""
        line = self._lines[sequence.id]
        start, end = line.read, len(sequence.tokens) if count is None else line.read + count
        line.read = sequence.hold.drafted[self.name] = end
        return Known(sequence.tokens[start:end], start, sequence.hold.pages, (), most)


def open_model(context: DraftContext) -> ModelDrafter:
    """Load the model that --draft names. Raises UsageError where it does not fit the target, NotFound, CorruptFile."""
    path = context.draft
    if path is None:
        raise UsageError("--spec draft needs a small model", hint="name it with --draft, as for run")
    source = open_weights(path if path.is_dir() else [path])
    try:
        loaded = load_model(source, context.ops, context.config.mmap, rest=context.config.quantize_rest)
        _require_no_states(path, loaded)
        own = load_text_rules(source.metadata(), path if path.is_dir() else None)
        sizes = (context.vocab_size, loaded.model.config.vocab_size)
        require_same_vocabulary(path, (context.rules.tokenizer, own.tokenizer), sizes)
    except BaseException:
        source.close()
        raise
    spec = context.config.spec
    return ModelDrafter(loaded, source, context.vocab_size, min(spec.n_max or USUAL, DEEPEST), spec.p_min)


def _require_no_states(path: Path, loaded: Loaded) -> None:
    recurrent = sum(1 for layer in loaded.model.memory() if layer is not None and layer.slot_bytes)
    if recurrent:
        config = loaded.model.config
        text = (
            f"{path}: {recurrent} of {config.layers} layers of {config.architecture} keep a state, which guesses spoil"
        )
        raise UsageError(text, hint="as a draft model use one whose layers are all attention")
