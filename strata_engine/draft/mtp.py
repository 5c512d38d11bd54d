"""Drafts of the model's own head for the token after next (multi-token prediction), chained.

Row S of the head takes the model's state of token S and the embedding of token S + 1, and gives token S + 2. So the
row of the last computed token takes the anchor, whose own forward has not run, and gives the first draft; each further
row takes the draft before it and the head's own state. What was guessed is run again with the model's states once the
target has seen it (backlog.py). Guesses are the most probable tokens, for seeded sequences too: the target's own choice
decides whether they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strata_engine.core.batch import Batch
from strata_engine.draft.backlog import Backlog, Feed
from strata_engine.draft.base import Ask, DraftContext, DraftRoom, Features, Proposal, Seen, Wants
from strata_engine.draft.chain import Chain, Known, Room
from strata_engine.errors import NotFound
from strata_engine.memory.kv import LayerMemory
from strata_engine.models.exp_draft import StreamDraft, load_stream_draft
from strata_engine.models.llama import Llama
from strata_engine.models.mtp import DraftHead, load_draft
from strata_engine.models.qwen4_exp import Qwen4Exp
from strata_kernels.ops import Array, Ops

DEEPEST = 8  # heads are trained for a step or two; what they guess further on is rarely right
USUAL = 4


@dataclass(frozen=True)
class HeadLink:
    """A draft head as the link of a chain."""

    head: DraftHead | StreamDraft

    @property
    def vocab_size(self) -> int:
        """Rows of the output head."""
        return self.head.head.rows

    @property
    def states_width(self) -> int:
        """Of the model's states."""
        return self.head.states_width

    def forward(self, batch: Batch, states: Array | None, ops: Ops) -> Array:
        """The head's states of the rows that want logits."""
        assert states is not None, "a draft head has states"
        cache: Any = batch.caches[0]
        return self.head.forward(batch.ids, states, cache, batch.rows, ops, batch.logit_rows)

    def logits(self, left: Array, batch: Batch, ops: Ops, out: Array) -> None:
        """out f32 [n, V]."""
        self.head.logits(left, ops, out)


class MtpDrafter:
    """The chain over one head and the rows it has not read."""

    name = "mtp"
    wants = Wants(final=True)

    def __init__(self, head: DraftHead | StreamDraft, most: int, p_min: float = 0.0) -> None:
        self.most = most
        self._head, self._p_min = head, p_min
        self._chain: Chain | None = None
        self._backlog = Backlog(head.states_width, 1)
        self._page_tokens = 1

    def memory(self) -> list[LayerMemory | None]:
        """Keys and values of the head's layer."""
        return [self._head.memory()]

    def bind(self, room: DraftRoom) -> None:
        """Take the caches and make the buffers."""
        own = Room(room.caches, room.page_tokens, room.limits, self.most)
        self._chain = Chain(HeadLink(self._head), room.ops, own)
        self._ops, self._page_tokens = room.ops, room.page_tokens
        self._backlog = Backlog(self._head.states_width, room.page_tokens)

    def observe(self, seen: Sequence[Seen], features: Features | None) -> None:
        """Keep the states of the rows; read them when there are enough for a whole step."""
        if not seen:
            return
        assert features is not None and features.final is not None, "it wants them"
        states = self._ops.host(features.final)
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
        for at, one, own, sure in zip(able, known, ids.T.tolist(), shares.T.tolist(), strict=True):
            kept = next((n for n, share in enumerate(sure[: one.most]) if share < self._p_min), one.most)
            found[at] = Proposal(tuple(own[:kept]), tuple(sure[:kept]))
        return found

    def forget(self, sequence_id: str) -> None:
        """Drop what is kept of a sequence."""
        self._backlog.forget(sequence_id)

    def report(self) -> dict[str, Any]:
        """Its size and shape."""
        head, chain = self._head, self._chain
        found = {"bytes": head.packed_bytes, "layers": 1, "states_width": head.states_width, "n_max": self.most}
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

    def _read(self, sequence: Any, count: int) -> None:
        self._bound.feed([self._known(self._backlog.take(sequence, count))])

    def _known(self, feed: Feed, most: int = 1) -> Known:
        first = feed.start + 1  # each row takes the token after its own
        ids = feed.sequence.tokens[first : first + feed.count]
        return Known(ids, feed.start - feed.base, feed.pages(self._page_tokens), feed.rows, most)


def open_mtp(context: DraftContext) -> MtpDrafter:
    """The draft head in the target's own checkpoint. Raises NotFound where there is none, else as load_model."""
    spec, model, source = context.config.spec, context.model, context.source
    where = str(source.paths[0]) if source.paths else source.kind
    head: DraftHead | StreamDraft | None = None
    if isinstance(model, Qwen4Exp):
        head = load_stream_draft(source, model, context.ops, context.config.mmap)
    elif isinstance(model, Llama):
        head = load_draft(source, model, context.ops, context.config.mmap)
    if head is None:
        text = f"{where}: no draft head (mtp.* or nextn tensors) in a model of family {model.config.architecture}"
        raise NotFound(text, hint="use --spec ngram or suffix, or a drafter of its own with --draft")
    return MtpDrafter(head, min(spec.n_max or USUAL, DEEPEST), spec.p_min)
