"""Chooses one token for a row: greedy or seeded, with log-probabilities of the raw distribution when asked.

The random number of a choice depends only on the seed and on how many tokens the sequence has generated (the generator
is counter-based), so a seed gives the same tokens whatever runs beside it and after a preemption.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from strata_engine.config import SamplingParams
from strata_engine.errors import LlmrunError, RequestRefused
from strata_engine.events import Token
from strata_engine.runtime.transforms import Floats, History, Ids, adjust, candidates, is_plain, largest

MOST_TOPS = 64  # values of a row that a device finds: more than any usual top-k


@dataclass(frozen=True)
class Top:
    """The largest logits of a row as a device found them, largest first, the lowest id first among equals."""

    ids: Ids
    values: Floats


class Chooser:
    """The sampler of one sequence. `eos`: ids that end it; masked while min_tokens asks for more, or for ever."""

    def __init__(self, params: SamplingParams, eos: Collection[int]) -> None:
        self._params = params
        self._seed = secrets.randbits(64) if params.seed is None else params.seed % 2**64
        self._plain = is_plain(params)
        self._eos = frozenset(eos)
        self._early = frozenset(self._eos | set(params.stop_token_ids)) if params.min_tokens > 0 else frozenset()

    @property
    def tops(self) -> int:
        """How many of a row's largest logits are all it ever needs; 0: it may need the whole row."""
        params = self._params
        if not self._plain or params.logprobs is not None or self._early or params.ignore_eos:
            return 0
        if params.temperature == 0:
            return 1
        return params.top_k if 0 < params.top_k <= MOST_TOPS else 0

    def choose(self, logits: Floats | Top, history: History) -> Token:
        """The next token of a row f32 [V], or of its tops where they are enough (`tops`): the same token.

        Raises LlmrunError for logits that are not finite or leave no token.
        """
        if isinstance(logits, Top):
            if not math.isfinite(logits.values[0]):
                raise _not_finite(float(logits.values[0]), history)
            if self._params.temperature == 0:
                return Token(int(logits.ids[0]))
            at = self._draw(logits.values[: self._params.top_k], len(history.ids) - history.prompt_tokens)
            return Token(int(logits.ids[at]))
        top = int(logits.argmax())  # a NaN wins argmax, so this one look finds it
        if not math.isfinite(logits[top]):
            raise _not_finite(float(logits[top]), history)
        params = self._params
        step = len(history.ids) - history.prompt_tokens
        masked = self._masked(step)
        plain = self._plain and top not in masked
        if plain and params.temperature == 0:
            return self._token(logits, top)
        row = logits if self._plain and not masked else adjust(logits, params, history, masked)
        best = top if row is logits else int(row.argmax())
        if not math.isfinite(row[best]):
            raise RequestRefused("logit_bias and masks leave no token to choose")
        chosen = best if params.temperature == 0 else self._draw(row, step)
        return self._token(logits, chosen)

    def _masked(self, step: int) -> frozenset[int]:
        if step < self._params.min_tokens:
            return self._early
        return self._eos if self._params.ignore_eos else frozenset()

    def _draw(self, row: Floats, step: int) -> int:
        ids, probabilities = candidates(row, self._params)
        if ids.size == 1:
            return int(ids[0])
        at = int(np.searchsorted(np.cumsum(probabilities), uniform(self._seed, step), side="right"))
        return int(ids[min(at, ids.size - 1)])  # the sum may end a rounding error below 1

    def _token(self, logits: Floats, chosen: int) -> Token:
        count = self._params.logprobs
        if count is None:
            return Token(chosen)
        wide = logits.astype(np.float64)
        top = wide.max()
        norm = float(top + np.log(np.exp(wide - top).sum()))
        best = largest(logits, count) if count else ()
        return Token(chosen, float(wide[chosen]) - norm, tuple((int(i), float(wide[i]) - norm) for i in best))


def _not_finite(value: float, history: History) -> LlmrunError:
    text = f"the model gave {value} as a logit after {len(history.ids)} tokens"
    return LlmrunError(text, hint="the weights may be damaged: verify the model's files")


def uniform(seed: int, step: int) -> float:
    """A number in [0, 1) that depends on seed (64 bits) and step only."""
    bits = int(np.random.Philox(key=seed, counter=step).random_raw())
    return (bits >> 11) * 2.0**-53


def check_params(params: SamplingParams, vocab_size: int) -> None:
    """Raises RequestRefused for values that no front end may let through, naming the field and the number."""
    for token, _ in params.logit_bias:
        _check_id("logit_bias", token, vocab_size)
    for token in params.stop_token_ids:
        _check_id("stop_token_ids", token, vocab_size)
    limits = (
        ("temperature", params.temperature, 0.0, math.inf),
        ("top_p", params.top_p, 0.0, 1.0),
        ("min_p", params.min_p, 0.0, 1.0),
        ("max_tokens", 1 if params.max_tokens is None else params.max_tokens, 1, math.inf),
        ("min_tokens", params.min_tokens, 0, math.inf),
        ("logprobs", params.logprobs or 0, 0, 20),
        ("presence_penalty", params.presence_penalty, -math.inf, math.inf),
        ("frequency_penalty", params.frequency_penalty, -math.inf, math.inf),
    )
    for name, value, low, high in limits:
        if not low <= value <= high or math.isinf(value):  # a NaN is not between anything
            wanted = f"{low:g} to {high:g}" if high < math.inf else f"a finite number from {low:g}"
            raise RequestRefused(f"{name} {value} is not {wanted}", details={"param": name, "value": str(value)})
    if not 0 < params.repeat_penalty < math.inf:
        text = f"repeat_penalty {params.repeat_penalty} must be above 0"
        raise RequestRefused(text, details={"param": "repeat_penalty"})


def _check_id(name: str, token: int, vocab_size: int) -> None:
    if not 0 <= token < vocab_size:
        text = f"{name}: token id {token} is outside the vocabulary (0..{vocab_size - 1})"
        raise RequestRefused(text, details={"param": name, "token": token, "vocab_size": vocab_size})
