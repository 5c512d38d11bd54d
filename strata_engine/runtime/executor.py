"""Runs spans of rows through a model: fills the fixed buffers, records a step for each new shape, replays known ones.

A decode step of a known shape costs the host only the filling of the buffers, no Python per layer. Recording and
running are apart, so plain torch operations and native programs go the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from strata_engine.core.batch import BatchBuffers, BatchLimits, Span
from strata_engine.core.steps import Steps
from strata_engine.memory.memory import Memory
from strata_engine.models.base import Model
from strata_kernels.ops import Ops


class Executor:
    """One model on one Ops with one Memory. Not thread-safe: the ops have one workspace."""

    def __init__(self, model: Model, ops: Ops, memory: Memory, limits: BatchLimits, feature_width: int = 0) -> None:
        """`feature_width`: of the image features the model takes; 0: it takes none."""
        self.limits = limits
        self._model, self._ops = model, ops
        self._buffers = BatchBuffers(limits, memory.caches, memory.page_tokens, ops, feature_width)
        self._logits = ops.zeros(limits.logit_rows, model.config.vocab_size)
        self._host_logits = ops.host(self._logits)
        self._steps = Steps(ops, self._record)

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
        """Bytes of the logits buffer, the largest one the executor owns."""
        return self._logits.nbytes

    def run(self, spans: Sequence[Span]) -> NDArray[np.float32]:
        """Compute the rows of `spans`; logits f32 [n, V] of the rows that wanted them, valid until the next run."""
        rows, wanted = self._buffers.fill(spans)
        self._steps.run((rows, wanted))
        return self._host_logits[:wanted]

    def _record(self, shape: tuple[int, int]) -> None:
        rows, wanted = shape
        batch = self._buffers.view(rows, wanted)
        hidden = self._model.forward(batch, self._ops)
        if wanted:
            self._model.logits(hidden, batch.logit_rows, self._ops, self._logits[:wanted])
