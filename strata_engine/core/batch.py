"""The arrays of one forward: Span says which rows, BatchBuffers holds them at fixed addresses, a model sees a Batch.

A recorded step holds addresses, so the buffers are made once and refilled; a Batch of a given shape is views of them.
Main flow: fill(spans) writes the buffers, view(rows, logit_rows) gives the Batch to record with.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from strata_engine.core.pictures import Sight
from strata_engine.core.sequence import NO_SLOT
from strata_kernels.ops import Array, Ops, Rows

FEW_ROWS = 8  # an anchor and its drafts: plain integers beat arrays of so few


@dataclass(frozen=True)
class Span:
    """Consecutive rows of one sequence: `ids` at positions start, start+1, ...

    `pages` covers start + len(ids) tokens. `logits`: how many of the last rows want logits. `slot`: the sequence's
    state slot, which a model with recurrent layers needs. `sight`: of a sequence with images; None: plain text.
    `keep`: how many of the first rows are certain, so that a recurrent state may take them up (1 of an anchor with
    drafts); None: all. `fold`: rows of the step before that a recurrent state must still take up first.
    """

    ids: Sequence[int]
    start: int
    pages: array[int]
    logits: int = 0
    slot: int = NO_SLOT
    sight: Sight | None = None
    keep: int | None = None
    fold: int = 0


@dataclass(frozen=True)
class Batch:
    """All that one forward reads: ids i32 [R], rows, the cache of every layer, and which rows want logits i32 [n].

    `caches`: one per layer, of the kind that the layer's memory makes (KvLayer, StateLayer); None: it keeps nothing.
    Of a model that sees: `feature_rows` i32 [R], the row of `features` f32 [most rows, width] that takes the place of a
    token's embedding, -1 for ordinary tokens. A width of several residual streams goes on with what deeper layers add.
    For drafters, of every row: `final` f32 [R, F] takes what a draft head reads (the row after the final norm, or its
    streams), `taps` f32 [R, len(tap_layers) * W] the residual stream after each of the ascending layers `tap_layers`.
    """

    ids: Array
    rows: Rows
    caches: tuple[Any, ...]
    logit_rows: Array
    features: Array | None = None
    feature_rows: Array | None = None
    final: Array | None = None
    taps: Array | None = None
    tap_layers: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """R, the number of rows."""
        return self.ids.shape[0]

    @property
    def whole(self) -> bool:
        """Do drafters read all rows after the last layer, not only those that want logits?"""
        return self.final is not None or self.taps is not None


@dataclass(frozen=True)
class Hidden:
    """What a forward leaves: the last residual stream before the final norm, f32 [R, W], in workspace.

    `picked`: only of the batch's `logit_rows`, in their order, [n, W]: the others end at the last layer's attention.
    """

    rows: Array
    picked: bool = False


@dataclass(frozen=True)
class BatchLimits:
    """Most rows, sequences, tokens of one sequence, and rows with logits in one forward."""

    rows: int
    sequences: int
    context_tokens: int
    logit_rows: int


class SightBuffers:
    """Fixed-address buffers for what rows see: axes, features and which rows are features."""

    def __init__(self, rows: int, width: int, ops: Ops) -> None:
        # the axes of a step of R rows are the first 3 R elements, so that [3, R] has no gaps
        self.axes, self.feature_rows = ops.zeros(3 * rows, dtype="i32"), ops.zeros(rows, dtype="i32")
        self.features = ops.zeros(rows, width)
        self._np_axes, self._np_rows = ops.host(self.axes), ops.host(self.feature_rows)
        self._np_features = ops.host(self.features)

    def fill(self, spans: Sequence[Span], rows: int) -> None:
        """Write what the rows of all spans see; rows of plain spans stand at their own position on every axis."""
        axes = self._np_axes[: 3 * rows].reshape(3, rows)
        self._np_rows[:rows] = -1
        row = 0
        for span in spans:
            end = row + len(span.ids)
            if span.sight is None:
                axes[:, row:end] = np.arange(span.start, span.start + len(span.ids), dtype=np.int32)
            else:
                axes[:, row:end] = span.sight.axes
                seen = row + span.sight.rows
                self._np_features[seen] = span.sight.features
                self._np_rows[seen] = seen
            row = end


class BatchBuffers:
    """Fixed-address i32 buffers for ids, positions, sequences, slots, pages, state slots and logit rows.

    `feature_width`: of a model that sees, the width of its image features; 0: it does not. `drafts_of_states`: the
    model has a recurrent state and steps may hold drafts, so its ops are told which rows are certain.
    """

    def __init__(
        self,
        limits: BatchLimits,
        caches: tuple[Any, ...],
        page_tokens: int,
        ops: Ops,
        feature_width: int = 0,
        drafts_of_states: bool = False,
    ) -> None:
        self.limits = limits
        self._drafts_of_states = drafts_of_states
        self._sight = SightBuffers(limits.rows, feature_width, ops) if feature_width else None
        self._caches = caches
        self._page_tokens = page_tokens
        most_pages = -(-limits.context_tokens // self._page_tokens)
        self._ids, self._positions, self._sequences, self._slots = (
            ops.zeros(limits.rows, dtype="i32") for _ in range(4)
        )
        self._pages = ops.zeros(limits.sequences, most_pages, dtype="i32")
        self._states, self._keep, self._fold = (ops.zeros(limits.sequences, dtype="i32") for _ in range(3))
        self._logit_rows = ops.zeros(limits.logit_rows, dtype="i32")
        self._np_ids, self._np_positions = ops.host(self._ids), ops.host(self._positions)
        self._np_sequences, self._np_slots = ops.host(self._sequences), ops.host(self._slots)
        self._np_pages, self._np_states = ops.host(self._pages), ops.host(self._states)
        self._np_keep, self._np_fold = ops.host(self._keep), ops.host(self._fold)
        self._np_logit_rows = ops.host(self._logit_rows)

    def fill(self, spans: Sequence[Span]) -> tuple[int, int]:
        """Write the rows of `spans` one after the other; returns (rows, logit rows).

        Raises ValueError when they do not fit the limits (a bug of the caller).
        """
        rows = sum(len(s.ids) for s in spans)
        wanted = sum(s.logits for s in spans)
        limits = self.limits
        if rows > limits.rows or len(spans) > limits.sequences or wanted > limits.logit_rows:
            raise ValueError(f"batch of {rows} rows, {len(spans)} sequences, {wanted} logit rows exceeds {limits}")
        if self._sight is not None:
            self._sight.fill(spans, rows)
        row = logit = 0
        for number, span in enumerate(spans):
            self._fill_span(number, row, span)
            row += len(span.ids)
            for back in range(span.logits, 0, -1):
                self._np_logit_rows[logit] = row - back
                logit += 1
        return rows, wanted

    def repeat_last(self, rows: int, wide: int) -> None:
        """Rows `rows`..`wide`-1 are the last row again. Not for a model with a recurrent state or images."""
        for column in (self._np_ids, self._np_positions, self._np_sequences, self._np_slots):
            column[rows:wide] = column[rows - 1]

    def _fill_span(self, number: int, row: int, span: Span) -> None:
        size, count = self._page_tokens, len(span.ids)
        self._np_pages[number, : len(span.pages)] = span.pages
        self._np_states[number] = span.slot
        if self._drafts_of_states:
            self._np_keep[number] = count if span.keep is None else span.keep
            self._np_fold[number] = span.fold
        if count <= FEW_ROWS:
            for at, token in enumerate(span.ids):
                position = span.start + at
                self._np_ids[row + at] = token
                self._np_positions[row + at] = position
                self._np_sequences[row + at] = number
                self._np_slots[row + at] = span.pages[position // size] * size + position % size
            return
        end = row + count
        positions = np.arange(span.start, span.start + count, dtype=np.int32)
        self._np_ids[row:end] = span.ids
        self._np_positions[row:end] = positions
        self._np_sequences[row:end] = number
        self._np_slots[row:end] = self._np_pages[number][positions // size] * size + positions % size

    def view(self, rows: int, logit_rows: int) -> Batch:
        """The Batch of this shape, as views of the buffers."""
        where = Rows(self._positions[:rows], self._sequences[:rows], self._slots[:rows], self._pages, self._states)
        if self._drafts_of_states:
            where = replace(where, keep=self._keep, fold=self._fold)
        batch = Batch(self._ids[:rows], where, self._caches, self._logit_rows[:logit_rows])
        sight = self._sight
        if sight is None:
            return batch
        where = replace(where, axes=sight.axes[: 3 * rows].reshape(3, rows))
        return replace(batch, rows=where, features=sight.features, feature_rows=sight.feature_rows[:rows])
