"""Runs spans of rows through a model: fills the fixed buffers, records a step for each new shape, replays known ones.

A decode step of a known shape costs the host only the filling of the buffers, no Python per layer. Recording and
running are apart, so plain torch operations and native programs go the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from strata_engine.core.batch import Batch, BatchBuffers, BatchLimits, Span
from strata_engine.core.steps import KEPT_STEPS, Steps, edges
from strata_engine.draft.base import Features, Wants
from strata_engine.memory.memory import Memory
from strata_engine.models.base import Model
from strata_engine.runtime.sampler import MOST_TOPS, Top
from strata_kernels.ops import Ops


class Executor:
    """One model on one Ops with one Memory. Not thread-safe: the ops have one workspace."""

    def __init__(
        self,
        model: Model,
        ops: Ops,
        memory: Memory,
        limits: BatchLimits,
        feature_width: int = 0,
        wants: Wants = Wants(),
    ) -> None:
        """`feature_width`: of the image features the model takes; 0: it takes none. `wants`: of all drafters."""
        self.limits, self.wants = limits, wants
        self._model, self._ops = model, ops
        caches = memory.caches[: len(model.memory())]  # those behind are the drafters'
        drafts = memory.recurrent and memory.drafts > 0
        self._buffers = BatchBuffers(limits, caches, memory.page_tokens, ops, feature_width, drafts)
        wide = len(wants.taps) * model.config.width
        self._final = ops.zeros(limits.rows, model.final_width) if wants.final else None
        self._taps = ops.zeros(limits.rows, wide) if wants.taps else None
        self._logits = ops.zeros(limits.logit_rows, model.config.vocab_size)
        self._host_logits = ops.host(self._logits, read=True)
        self._tops, self._top_values = (
            ops.zeros(limits.logit_rows, MOST_TOPS, dtype="i32"),
            ops.zeros(limits.logit_rows, MOST_TOPS),
        )
        self._host_tops, self._host_values = ops.host(self._tops, read=True), ops.host(self._top_values, read=True)
        # with drafts there is a shape for every number of them
        self._steps = Steps(ops, self._record, KEPT_STEPS + limits.logit_rows)

    @property
    def ops(self) -> Ops:
        """The operations that steps are recorded with."""
        return self._ops

    @property
    def recorded(self) -> int:
        """Steps recorded so far, for the report."""
        return self._steps.recorded

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the logits and of what drafters read, the largest buffers the executor owns."""
        return sum(array.nbytes for array in (self._logits, self._final, self._taps) if array is not None)

    def run(self, spans: Sequence[Span]) -> NDArray[np.float32]:
        """Compute the rows of `spans`; logits f32 [n, V] of the rows that wanted them, valid until the next run."""
        rows, wanted = self._buffers.fill(spans)
        self._steps.run((rows, wanted, False))
        return self._host_logits[:wanted]

    @property
    def compiles(self) -> int:
        """Kernels that were compiled while steps ran; none ever should."""
        launcher = getattr(getattr(self._ops, "near", self._ops), "launcher", None)
        return getattr(getattr(launcher, "counts", None), "compiles", 0)

    @property
    def finds_tops(self) -> bool:
        """Does the device find the largest logits of a row, so that not all of them are copied to the host?"""
        return getattr(self._ops, "separate", False)

    def run_tops(self, spans: Sequence[Span]) -> list[Top]:
        """As `run`, but only the largest MOST_TOPS logits of each row, valid until the next run."""
        rows, wanted = self._buffers.fill(spans)
        self._steps.run((rows, wanted, True))
        return [Top(self._host_tops[row], self._host_values[row]) for row in range(wanted)]

    def plan(self) -> None:
        """Record, into an Ops that only plans, a step of each kind that can come: they launch all there will be."""
        limits, tops = self.limits, (False, True) if self.finds_tops else (False,)
        shapes = [(rows, wanted, False) for rows in edges(limits.rows) for wanted in (0, 1)]
        # no op chooses by both numbers, so the other is the largest there is
        shapes += [(limits.rows, wanted, top) for wanted in edges(limits.logit_rows) for top in tops]
        for shape in shapes:
            self._steps.plan(shape)

    @property
    def recorded_s(self) -> float:
        """Seconds that recording steps took so far."""
        return self._steps.recorded_s

    def prepare(self, rows: int) -> bool:
        """Record a step in which so many rows decode, before it is needed. False: no step can have so many."""
        fits = rows <= min(self.limits.rows, self.limits.logit_rows)
        if fits:
            self._steps.prepare((rows, rows, self.finds_tops))
        return fits

    def features(self, rows: int) -> Features | None:
        """What the last run left of its `rows` rows for drafters, valid until the next; None: they want nothing."""
        if not self.wants.anything:
            return None
        final, taps = (None if array is None else array[:rows] for array in (self._final, self._taps))
        return Features(final, taps)

    def _record(self, shape: tuple[int, int, bool]) -> None:
        rows, wanted, tops = shape
        batch = self._with_features(self._buffers.view(rows, wanted))
        hidden = self._model.forward(batch, self._ops)
        if not wanted:
            return
        # buffers that the host reads are copied to it whenever a step writes them
        logits = self._ops.take(wanted, self._model.config.vocab_size) if tops else self._logits[:wanted]
        self._model.logits(hidden, batch.logit_rows, self._ops, logits)
        if tops:
            largest = self._ops.largest  # type: ignore[attr-defined]  # finds_tops says that it is there
            largest(logits, self._tops[:wanted], self._top_values[:wanted])

    def _with_features(self, batch: Batch) -> Batch:
        left = self.features(batch.count)
        if left is None:
            return batch
        return replace(batch, final=left.final, taps=left.taps, tap_layers=self.wants.taps)
