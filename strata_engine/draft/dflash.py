"""Drafts of a DFlash drafter: a whole block of guesses in one pass, for all sequences together.

Residuals of the target's layers (taps) wait in a backlog; before it guesses, the drafter turns what waits into keys and
values of its own layers, at the tokens' positions in the sequence's pages. Then the anchor and masks after it run as
one block; their keys and values stand in the pages behind the known tokens, where the next feed writes over them.
DFlash2 drafters
come the same way and choose their tokens by dflash2.py. Guesses are the most probable tokens, for seeded
sequences too: the target's own choice decides whether they hold.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from strata_engine.draft.backlog import Backlog
from strata_engine.draft.base import Ask, DraftContext, DraftRoom, Features, Proposal, Seen, Wants
from strata_engine.draft.block import Block, BlockPass, ContextPass
from strata_engine.draft.layout import Layouts
from strata_engine.errors import UsageError
from strata_engine.formats.base import WeightSource
from strata_engine.formats.open import open_weights
from strata_engine.memory.kv import LayerMemory
from strata_engine.models.dflash import DFlash, load_dflash
from strata_engine.models.dflash_config import read_dflash

log = logging.getLogger(__name__)
MASK_ROW = "mask_embedding.pt"


class DFlashDrafter:
    """One drafter with its backlog and its two passes."""

    name = "dflash"

    def __init__(self, net: DFlash, most: int, p_min: float = 0.0, source: WeightSource | None = None) -> None:
        """`source`: of the drafter's weights, some of which may stay mapped."""
        self.most = most
        self.wants = Wants(taps=net.config.taps)
        self._net, self._p_min, self._source = net, p_min, source
        self._layouts = Layouts(net.config)
        self._room: DraftRoom | None = None

    def memory(self) -> list[LayerMemory | None]:
        """Keys and values of its layers."""
        return self._net.memory()

    def bind(self, room: DraftRoom) -> None:
        """Take the caches and make the buffers."""
        self._room = room
        self._backlog = Backlog(self._net.fc.weight.cols, room.page_tokens, self.name)
        self._context = ContextPass(self._net, room)
        self._blocks = BlockPass(self._net, room)

    def plan(self) -> None:
        """Record passes of all kinds into ops that only plan."""
        self._blocks.plan()
        self._context.plan()

    def prepare(self, depth: int) -> None:
        """Record a block of so many guesses, and passes of the rows that a step may keep."""
        depth = min(depth, self.most)
        self._blocks.prepare(depth)
        self._context.prepare(1 + depth)

    def observe(self, seen: Sequence[Seen], features: Features | None) -> None:
        """Keep the taps of the rows; read them when there are enough for a whole step."""
        if not seen:
            return
        assert self._room is not None and features is not None and features.taps is not None, "it wants them"
        taps = self._room.ops.host(features.taps, read=True)
        for one in seen:
            self._backlog.add(one.sequence, one.start, taps[one.first_row : one.first_row + one.count])
            while self._backlog.unread(one.sequence) >= self._room.limits.rows:
                self._read([one.sequence])

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """Guesses for each sequence whose taps are known."""
        ready = [ask for ask in asks if self._backlog.complete(ask.sequence)]
        self._read([ask.sequence for ask in ready])
        found: dict[str, Proposal] = {}
        for some in self._blocks.groups([self._block(ask) for ask in ready]):
            for block, guess in zip(some, self._blocks.run(some), strict=True):
                found[block.sequence.id] = self._proposal(*guess)
        return [found.get(ask.sequence.id, Proposal()) for ask in asks]

    def forget(self, sequence_id: str) -> None:
        """Drop what waits of a sequence."""
        if self._room is not None:
            self._backlog.forget(sequence_id)

    @property
    def recorded(self) -> int:
        """Steps of its own that were recorded so far."""
        return 0 if self._room is None else self._context.recorded + self._blocks.recorded

    def report(self) -> dict[str, Any]:
        """Its shape, how the layout was told and what the first prompt said of it."""
        config, net = self._net.config, self._net
        views = [f"window {v.window}" if v.window else "full" for v in config.views]
        return {
            "kind": "DFlash2" if net.selector else "DFlash",
            "packed_bytes": net.packed_bytes,
            "layers": config.layers,
            "block": config.block,
            "layout": config.layout,
            "layout_from": config.layout_from,
            "taps": list(config.taps),
            "attention": views,
            "causal": [view.causal for view in config.views],
            "most": self.most,
            "notes": [*net.notes, *self._layouts.notes()],
        }

    def _block(self, ask: Ask) -> Block:
        base, pages = self._backlog.place(ask.sequence)
        return Block(ask.sequence, base, pages, min(ask.most, self.most))

    def _proposal(self, tokens: Sequence[int], shares: Sequence[float]) -> Proposal:
        low = next((n for n, share in enumerate(shares) if share < self._p_min), len(tokens))
        return Proposal(tuple(map(int, tokens[:low])), tuple(map(float, shares[:low])))

    def _read(self, sequences: Sequence[Any]) -> None:
        """Turn all that waits into keys and values, as many rows at once as a step takes."""
        for sequence in sequences:
            if self._layouts.wants(sequence, self._backlog.unread(sequence)):
                self._probe(sequence)
        waiting = [sequence for sequence in sequences if self._backlog.unread(sequence)]
        while waiting:
            left, feeds = self._context.most_rows, []
            for sequence in waiting:
                if count := min(left, self._backlog.unread(sequence)):
                    feeds.append(self._backlog.take(sequence, count))
                    left -= count
            self._context.run(feeds)
            waiting = [sequence for sequence in waiting if self._backlog.unread(sequence)]

    def _probe(self, sequence: Any) -> None:
        """Read the sequence piece by piece and guess what is known after each, as both layouts would have it."""
        base, pages = self._backlog.place(sequence)
        first = self._backlog.next_unread(sequence)
        for at in self._layouts.anchors(first, first + self._backlog.unread(sequence)):
            while (left := at - self._backlog.next_unread(sequence)) > 0:
                self._context.run([self._backlog.take(sequence, min(left, self._context.most_rows))])
            ids = sequence.tokens[at : at + 1]
            self._layouts.count(sequence.tokens, at, self._blocks.best(ids[0], at - base, pages))
        for note in self._layouts.notes():
            log.warning("%s", note)


def open_dflash(context: DraftContext) -> DFlashDrafter:
    """The drafter at `context.draft`. Raises UsageError with both values where it does not fit; CorruptFile."""
    if context.draft is None:
        raise UsageError(
            "--spec dflash needs a drafter", hint="name its directory or reference with --draft, or use --spec auto"
        )
    spec, source = context.config.spec, open_weights(context.draft)
    try:
        config = read_dflash(source)
        if spec.method == "dflash" and spec.n_max is not None and spec.n_max > config.drafts:
            text = (
                f"--spec-n-max {spec.n_max}: the drafter's block of {config.block} rows guesses {config.drafts} tokens"
            )
            raise UsageError(text, hint="a block longer than the trained one ruins the guesses")
        options = context.config
        net = load_dflash(source, config, context.model, context.ops, options.mmap, options.quantize_rest)
        if (context.draft / MASK_ROW).exists():
            net = replace(net, notes=(*net.notes, f"{MASK_ROW} is not read; masks take their row of the model's table"))
    except BaseException:
        source.close()
        raise
    return DFlashDrafter(net, min(spec.n_max or config.drafts, config.drafts), spec.p_min, source)
