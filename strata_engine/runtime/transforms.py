"""From one row of logits to the tokens that may be chosen. The order, the same for every request:

1. logit bias (clamped to +-100)   2. repeat, presence and frequency penalties   3. masked ids (EOS) become impossible
4. temperature   5. top-k   6. top-p   7. min-p
Rows are numpy f32 [V]; a row is copied before it is changed. Ties go to the lower id, so sorting decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strata_engine.config import SamplingParams

BIAS_LIMIT = 100.0
_BLOCK = 64  # logits in one block of the coarse search in `largest`
_LEAST_TEMPERATURE = 1e-30  # below it the division would leave f32
_FIRST_TRY = 512  # candidates looked at before a top-p search sorts more

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class History:
    """What the penalties look at: all ids so far, and where the generated ones begin."""

    ids: list[int]
    prompt_tokens: int


def is_plain(params: SamplingParams) -> bool:
    """True when logits are used as they are: no bias, no penalty (masks are the caller's)."""
    penalised = params.repeat_penalty != 1.0 and params.penalty_last_n != 0
    return not (params.logit_bias or penalised or params.presence_penalty or params.frequency_penalty)


def adjust(logits: Floats, params: SamplingParams, history: History, masked: Collection[int]) -> Floats:
    """Steps 1 to 3 on a copy. `penalty_last_n` -1 = the whole sequence, 0 = no repeat penalty."""
    row = logits.copy()
    for token, bias in params.logit_bias:
        row[token] += min(max(bias, -BIAS_LIMIT), BIAS_LIMIT)
    if params.repeat_penalty != 1.0 and params.penalty_last_n != 0:
        window = history.ids if params.penalty_last_n < 0 else history.ids[-params.penalty_last_n :]
        seen = np.unique(np.asarray(window, dtype=np.int64))
        values = row[seen]
        row[seen] = np.where(values > 0, values / params.repeat_penalty, values * params.repeat_penalty)
    if params.presence_penalty or params.frequency_penalty:
        generated = np.asarray(history.ids[history.prompt_tokens :], dtype=np.int64)
        seen, counts = np.unique(generated, return_counts=True)
        row[seen] -= (params.presence_penalty + params.frequency_penalty * counts).astype(np.float32)
    if masked:
        row[list(masked)] = -np.inf
    return row


def largest(row: Floats, count: int) -> Ids:
    """Ids of the `count` largest logits, largest first, lower id first among equals.

    Sorting a whole vocabulary costs milliseconds. The count-th largest block maximum is a bound that at least `count`
    logits reach, so only the few at or above it are sorted.
    """
    if count >= row.size:
        candidates = np.arange(row.size)
    else:
        whole = row[: row.size // _BLOCK * _BLOCK].reshape(-1, _BLOCK).max(axis=1)
        if count <= whole.size:
            bound = np.partition(whole, whole.size - count)[whole.size - count]
        else:
            bound = np.partition(row, row.size - count)[row.size - count]
        candidates = np.flatnonzero(row >= bound)
    order = np.lexsort((candidates, -row[candidates]))
    return candidates[order[:count]]


def candidates(row: Floats, params: SamplingParams) -> tuple[Ids, NDArray[np.float64]]:
    """Steps 4 to 7: (ids, probabilities summing to 1). At least one remains.

    The most probable comes first, except when nothing limits the choice: then ids stay in order and nothing is sorted.
    """
    if params.top_k > 0:
        ids = largest(row, min(params.top_k, row.size))
        weights = _weights(row[ids], float(row[ids[0]]), params.temperature)
        total = float(weights.sum())
    elif params.top_p < 1.0 or params.min_p > 0.0:
        ids, weights, total = _all_candidates(row, params)
    else:
        weights = _weights(row, float(row.max()), params.temperature)
        return np.arange(row.size), weights / weights.sum()
    if params.top_p < 1.0:
        keep = int(np.searchsorted(np.cumsum(weights), params.top_p * total)) + 1
        ids, weights = ids[:keep], weights[:keep]
    if params.min_p > 0.0:
        keep = max(1, int(np.count_nonzero(weights >= params.min_p * weights[0])))
        ids, weights = ids[:keep], weights[:keep]
    possible = max(1, int(np.count_nonzero(weights)))
    ids, weights = ids[:possible], weights[:possible]
    return ids, weights / weights.sum()


def _weights(values: Floats, top: float, temperature: float) -> NDArray[np.float64]:
    """Unnormalised probabilities; the largest is 1, so a tiny temperature cannot overflow.

    The exponentials are f32 (ten times faster, and as exact as the logits are); sums over them are f64.
    """
    with np.errstate(over="ignore", under="ignore"):
        return np.exp((values - top) / np.float32(max(temperature, _LEAST_TEMPERATURE))).astype(np.float64)


def _all_candidates(row: Floats, params: SamplingParams) -> tuple[Ids, NDArray[np.float64], float]:
    """Without top-k: as many sorted candidates as top-p and min-p can keep, and the weight of the whole row."""
    everything = _weights(row, float(row.max()), params.temperature)
    total = float(everything.sum())
    count = _FIRST_TRY
    while True:
        ids = largest(row, min(count, row.size))
        weights = everything[ids]
        enough = (params.top_p < 1.0 and weights.sum() >= params.top_p * total) or weights[-1] < params.min_p
        if enough or weights[-1] == 0.0 or ids.size == row.size:
            return ids, weights, total
        count *= 8
