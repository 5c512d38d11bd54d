"""Call: what one generating body asks for before the model is known, and its way to sequences once it is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from strata_cli.server.errors import BadField
from strata_engine.chat import ChatRequest, TokenRequest
from strata_engine.config import SamplingParams
from strata_engine.runtime.api import LoadedModel

_SEED_MASK = 2**63 - 1


@dataclass(frozen=True)
class Call:
    """`given` holds SamplingParams fields the client named; all others come from the model's defaults.

    `count` choices are made for each request. `ignored` are body fields without meaning to us. `echo`: completions
    repeat the prompt in front of the answer.
    """

    model: str
    requests: tuple[ChatRequest | TokenRequest, ...]
    given: dict[str, Any] = field(default_factory=dict)
    count: int = 1
    stream: bool = False
    include_usage: bool = False
    token_ids: bool = False
    echo: bool = False
    ignored: tuple[str, ...] = ()

    def sequences(self, model: LoadedModel) -> list[tuple[ChatRequest | TokenRequest, SamplingParams]]:
        """Request and parameters of each choice, in index order. Raises BadField for ids outside the vocabulary."""
        base = self._params(model)
        for request in self.requests:
            if isinstance(request, TokenRequest):
                _check_ids(request.ids or (), "prompt", model.vocab_size)
        return [
            (request, replace(base, seed=None if base.seed is None else (base.seed + number) & _SEED_MASK))
            for request in self.requests
            for number in range(self.count)
        ]

    def _params(self, model: LoadedModel) -> SamplingParams:
        given = dict(self.given)
        stop = tuple(dict.fromkeys((*model.defaults.stop, *given.pop("stop", ()))))
        params = replace(model.defaults, **given, stop=stop)
        _check_ids([number for number, _ in params.logit_bias], "logit_bias", model.vocab_size)
        _check_ids(params.stop_token_ids, "stop_token_ids", model.vocab_size)
        return params


def _check_ids(ids: Any, param: str, vocab_size: int) -> None:
    for number in ids:
        if not 0 <= number < vocab_size:
            raise BadField(param, f"token id {number} is outside the vocabulary (0 to {vocab_size - 1})")
