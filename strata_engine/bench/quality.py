"""How far one forward pass is from another: mean Kullback-Leibler divergence over every position of given texts.

A speed is worth nothing without it, so the benches print it beside each speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strata_engine.core.batch import BatchLimits, Span
from strata_engine.core.sequence import Hold
from strata_engine.errors import OutOfMemory
from strata_engine.formats.base import WeightSource
from strata_engine.memory.memory import Memory
from strata_engine.models.load import load_model
from strata_engine.runtime.executor import Executor
from strata_kernels.ops import Ops

Forward = Callable[[Sequence[int]], NDArray[np.float32]]  # ids -> logits [n, V] of every position

_ROWS = 512  # of a step: plain operations unpack every weight once a step
_PAGE_TOKENS = 32


@dataclass(frozen=True)
class Divergence:
    """Over `positions`: mean and worst divergence in nats, and the share whose likeliest token is the same."""

    mean_nats: float
    worst_nats: float
    same_top_share: float
    positions: int


def forward_of(source: WeightSource, ops: Ops, kv_type: str = "f16", context_tokens: int = 512) -> Forward:
    """A forward pass over one text of at most `context_tokens`. Raises what loading raises."""
    loaded = load_model(source, ops)
    pages = -(-context_tokens // _PAGE_TOKENS)
    memory = Memory(loaded.model.memory(), pages, _PAGE_TOKENS, kv_type, ops.zeros)
    executor = Executor(loaded.model, ops, memory, BatchLimits(_ROWS, 1, context_tokens, _ROWS))
    return lambda ids: all_logits(executor, memory, ids)


def all_logits(executor: Executor, memory: Memory, ids: Sequence[int]) -> NDArray[np.float32]:
    """Logits [n, V] of every position of a fresh sequence. Raises OutOfMemory: there is no room for it."""
    hold, parts = Hold(), []
    if not memory.reserve(hold, len(ids)):
        raise OutOfMemory(f"no room for a text of {len(ids)} tokens", hint="a larger context")
    try:
        for start in range(0, len(ids), executor.limits.logit_rows):
            piece = list(ids[start : start + executor.limits.logit_rows])
            parts.append(executor.run([Span(piece, start, hold.pages, len(piece), hold.slot)]).copy())
    finally:
        memory.release(hold)
    return np.concatenate(parts)


def divergence(exact: Forward, other: Forward, texts: Sequence[Sequence[int]]) -> Divergence:
    """KL(exact || other) of the next token's distribution at every position of `texts`."""
    found = [_compare(exact(ids), other(ids)) for ids in texts]
    nats = np.concatenate([each for each, _ in found])
    same = sum(count for _, count in found)
    return Divergence(float(nats.mean()), float(nats.max()), same / len(nats), len(nats))


def _compare(exact: NDArray[np.float32], other: NDArray[np.float32]) -> tuple[NDArray[np.float64], int]:
    p, q = _log_softmax(exact), _log_softmax(other)
    return (np.exp(p) * (p - q)).sum(-1), int((exact.argmax(-1) == other.argmax(-1)).sum())


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
