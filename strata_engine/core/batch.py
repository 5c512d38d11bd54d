"""The arrays of one forward: Span says which rows, BatchBuffers holds them at fixed addresses, a model sees a Batch.

A recorded step holds addresses, so the buffers are made once and refilled; a Batch of a given shape is views of them.
Main flow: fill(spans) writes the buffers, view(rows, logit_rows) gives the Batch to record with.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from strata_engine.core.sequence import NO_SLOT
from strata_kernels.ops import Array, Ops, Rows


@dataclass(frozen=True)
class Span:
    """Consecutive rows of one sequence: `ids` at positions start, start+1, ...

    `pages` covers start + len(ids) tokens. `logits`: how many of the last rows want logits. `slot`: the sequence's
    state slot, which a model with recurrent layers needs.
    """

    ids: Sequence[int]
    start: int
    pages: array[int]
    logits: int = 0
    slot: int = NO_SLOT


@dataclass(frozen=True)
class Batch:
    """All that one forward reads: ids i32 [R], rows, the cache of every layer, and which rows want logits i32 [n].

    `caches`: one per layer, of the kind that the layer's memory makes (KvLayer, StateLayer); None: it keeps nothing.
    """

    ids: Array
    rows: Rows
    caches: tuple[Any, ...]
    logit_rows: Array

    @property
    def count(self) -> int:
        """R, the number of rows."""
        return self.ids.shape[0]


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


class BatchBuffers:
    """Fixed-address i32 buffers for ids, positions, sequences, slots, pages, state slots and logit rows."""

    def __init__(self, limits: BatchLimits, caches: tuple[Any, ...], page_tokens: int, ops: Ops) -> None:
        self.limits = limits
        self._caches = caches
        self._page_tokens = page_tokens
        most_pages = -(-limits.context_tokens // self._page_tokens)
        self._ids, self._positions, self._sequences, self._slots = (
            ops.zeros(limits.rows, dtype="i32") for _ in range(4)
        )
        self._pages = ops.zeros(limits.sequences, most_pages, dtype="i32")
        self._states = ops.zeros(limits.sequences, dtype="i32")
        self._logit_rows = ops.zeros(limits.logit_rows, dtype="i32")
        self._np_ids, self._np_positions = ops.host(self._ids), ops.host(self._positions)
        self._np_sequences, self._np_slots = ops.host(self._sequences), ops.host(self._slots)
        self._np_pages, self._np_states = ops.host(self._pages), ops.host(self._states)
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
        row = logit = 0
        for number, span in enumerate(spans):
            self._fill_span(number, row, span)
            row += len(span.ids)
            for back in range(span.logits, 0, -1):
                self._np_logit_rows[logit] = row - back
                logit += 1
        return rows, wanted

    def _fill_span(self, number: int, row: int, span: Span) -> None:
        size, count = self._page_tokens, len(span.ids)
        self._np_pages[number, : len(span.pages)] = span.pages
        self._np_states[number] = span.slot
        if count == 1:  # a decode row: plain integers beat arrays of one
            self._np_ids[row] = span.ids[0]
            self._np_positions[row] = span.start
            self._np_sequences[row] = number
            self._np_slots[row] = span.pages[span.start // size] * size + span.start % size
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
        return Batch(self._ids[:rows], where, self._caches, self._logit_rows[:logit_rows])
