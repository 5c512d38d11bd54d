"""The two passes of a DFlash drafter as recorded steps: known tokens in, and blocks of guesses out.

A step is recorded the first time its shape comes. Blocks of several sequences run together; each is a span of rows that
begins at its anchor.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata_engine.core.batch import BatchBuffers, BatchLimits, Span
from strata_engine.core.sequence import Sequence as TokenSequence
from strata_engine.core.steps import Steps, edges
from strata_engine.draft.backlog import Feed
from strata_engine.draft.base import DraftRoom
from strata_engine.draft.widths import padded
from strata_engine.models.dflash import BlockRows, DFlash

Guess = tuple[Sequence[int], Sequence[float]]  # tokens, and the drafter's probability of each


@dataclass(frozen=True)
class Block:
    """The block of one sequence: `most` guesses after its anchor, the last token. `base`, `pages`: as of its feeds."""

    sequence: TokenSequence
    base: int
    pages: array[int]
    most: int

    @property
    def anchor(self) -> int:
        """Position of the anchor, counted from `base`."""
        return len(self.sequence.tokens) - 1 - self.base


class ContextPass:
    """Taps of known tokens -> keys and values of all layers."""

    def __init__(self, net: DFlash, room: DraftRoom) -> None:
        ops, limits = room.ops, room.limits
        self.most_rows = limits.rows
        self._net, self._ops, self._caches, self._page_tokens = net, ops, room.caches, room.page_tokens
        self._buffers = BatchBuffers(replace(limits, logit_rows=1), room.caches, room.page_tokens, ops)
        self._taps = ops.zeros(limits.rows, net.fc.weight.cols)
        self._host_taps = ops.host(self._taps)
        self._steps = Steps(ops, self._record)

    @property
    def recorded(self) -> int:
        """Steps recorded so far."""
        return self._steps.recorded

    def run(self, feeds: Sequence[Feed]) -> None:
        """Write the rows of `feeds`. They fit into `most_rows`."""
        at, spans = 0, []
        for feed in feeds:
            feed.copy_to(self._host_taps[at : at + feed.count])
            at += feed.count
            spans.append(Span([0] * feed.count, feed.start - feed.base, feed.pages(self._page_tokens)))
        rows, _ = self._buffers.fill(spans)
        wide = min(padded(rows), self.most_rows)
        self._buffers.repeat_last(rows, wide)  # written twice to the same place: few shapes come up
        self._host_taps[rows:wide] = self._host_taps[rows - 1]
        self._steps.run(wide)

    def prepare(self, most: int) -> None:
        """Record the passes of up to `most` rows."""
        for rows in sorted({min(padded(count), self.most_rows) for count in range(1, most + 1)}):
            self._steps.prepare(rows)

    def plan(self) -> None:
        """Record passes of all kinds into ops that only plan."""
        for rows in edges(self.most_rows):
            self._steps.plan(rows)

    def _record(self, rows: int) -> None:
        batch = self._buffers.view(rows, 0)
        self._net.context(self._taps[:rows], self._caches, batch.rows, self._ops)


class BlockPass:
    """Anchors and masks -> guesses."""

    def __init__(self, net: DFlash, room: DraftRoom) -> None:
        ops, config = room.ops, net.config
        self._net, self._ops, self._caches = net, ops, room.caches
        self._sequences = max(1, min(room.limits.sequences, room.limits.rows // config.block))
        rows = self._sequences * config.block
        limits = BatchLimits(rows, self._sequences, room.limits.context_tokens + config.block, rows)
        self._buffers = BatchBuffers(limits, room.caches, room.page_tokens, ops)
        self._reach = ops.zeros(rows, dtype="i32")
        self._firsts = {view.window: ops.zeros(rows, dtype="i32") for view in config.views if view.window}
        self._host_reach = ops.host(self._reach)
        self._host_firsts = {window: ops.host(first) for window, first in self._firsts.items()}
        self._logits = ops.zeros(rows, net.head.rows)
        self._chosen, self._shares = ops.zeros(rows, dtype="i32"), ops.zeros(rows)
        self._host_chosen, self._host_shares = ops.host(self._chosen, read=True), ops.host(self._shares, read=True)
        selector = net.selector
        self._views = ops.zeros(rows, selector.config.rank if selector else 1)
        self._steps = Steps(ops, self._record)

    @property
    def recorded(self) -> int:
        """Steps recorded so far."""
        return self._steps.recorded

    def prepare(self, most: int) -> None:
        """Record the block of `most` guesses of one sequence."""
        self._steps.prepare((most if self._net.config.from_anchor else 1 + most, most))

    def plan(self) -> None:
        """Record blocks of all kinds into ops that only plan."""
        for rows in edges(self._buffers.limits.rows):
            for wanted in edges(rows):
                self._steps.plan((rows, wanted))

    def groups(self, blocks: Sequence[Block]) -> Iterator[Sequence[Block]]:
        """As many at once as a step takes."""
        for at in range(0, len(blocks), self._sequences):
            yield blocks[at : at + self._sequences]

    def run(self, blocks: Sequence[Block]) -> list[Guess]:
        """Guesses of each block."""
        anchors = [block.sequence.tokens[-1] for block in blocks]
        each = zip(blocks, anchors, strict=True)
        self._fill([self._span(token, block.anchor, block.pages, block.most) for block, token in each])
        found, row = [], 0
        for block, token in zip(blocks, anchors, strict=True):
            found.append(self._guess(token, slice(row, row + block.most)))
            row += block.most
        return found

    def best(self, anchor: int, position: int, pages: array[int]) -> NDArray[np.int32]:
        """The most probable token of every row of a whole block, the anchor's included."""
        ids = [anchor] + [self._net.config.mask_id] * (self._net.config.block - 1)
        rows = self._fill([Span(ids, position, pages, len(ids))])
        return self._host_chosen[:rows].copy()

    def _span(self, anchor: int, position: int, pages: array[int], most: int) -> Span:
        config = self._net.config
        masks = most - 1 if config.from_anchor else most
        return Span([anchor] + [config.mask_id] * masks, position, pages, most)

    def _fill(self, spans: Sequence[Span]) -> int:
        row = 0
        for span in spans:
            end, count = row + len(span.ids), len(span.ids)
            self._host_reach[row:end] = span.start + count - 1
            for window, first in self._host_firsts.items():
                first[row:end] = np.maximum(0, np.arange(span.start, span.start + count) - (window - 1))
            row = end
        rows, wanted = self._buffers.fill(spans)
        self._steps.run((rows, wanted))
        return wanted

    def _guess(self, anchor: int, rows: slice) -> Guess:
        selector = self._net.selector
        if selector is None:
            return self._host_chosen[rows].tolist(), self._host_shares[rows].tolist()
        return selector.walk(
            anchor, self._ops.host(self._logits, read=True)[rows], self._ops.host(self._views, read=True)[rows]
        )

    def _record(self, shape: tuple[int, int]) -> None:
        rows, wanted = shape
        net, ops = self._net, self._ops
        batch = self._buffers.view(rows, wanted)
        hidden = net.block(batch.ids, self._caches, BlockRows(self._seen_by_layers(batch.rows, rows)), ops)
        picked = ops.take(wanted, hidden.shape[1])
        ops.gather(hidden, batch.logit_rows, picked)
        logits = self._logits[:wanted]
        net.logits(picked, ops, logits)
        ops.argmax(logits, self._chosen[:wanted], self._shares[:wanted])
        if net.selector is not None:
            net.selector.project(picked, ops, self._views[:wanted])

    def _seen_by_layers(self, where: Any, rows: int) -> dict[tuple[int, bool], Any]:
        return {
            (view.window, view.causal): replace(
                where,
                reach=None if view.causal else self._reach[:rows],
                first=self._firsts[view.window][:rows] if view.window else None,
            )
            for view in self._net.config.views
        }
