"""POST /v1/completions: prompts as text or token ids -> Call, events -> chunks."""

from __future__ import annotations

import codecs
from typing import Any

from strata_cli.server.errors import BadField, unsupported
from strata_cli.server.fields import Fields
from strata_cli.server.openai import sampling
from strata_cli.server.openai.call import Call
from strata_cli.server.openai.labels import Labels, finite
from strata_cli.server.openai.writer import Chunk, Writer
from strata_engine.chat import TokenRequest
from strata_engine.events import Finish, Reasoning, Text, Token

_MOST_PROMPTS = 1024


def read(body: dict[str, Any]) -> Call:
    """Raises BadField (400) with the field's name."""
    fields = Fields(body)
    model = fields.text("model") or ""
    stream = fields.boolean("stream") or False
    prompts = _prompts(fields.value("prompt"))
    given = sampling.read_sampling(fields)
    logprobs = _logprobs(fields)
    if logprobs is not None:
        given["logprobs"] = logprobs
    count = sampling.read_choices(fields)
    if len(prompts) * count > _MOST_PROMPTS:
        raise BadField("prompt", f"{len(prompts)} prompts of {count} choices, {_MOST_PROMPTS} together at most")
    echo = fields.boolean("echo") or False
    if echo and logprobs is not None:
        raise unsupported("echo", "echo together with logprobs (log probabilities of the prompt)")
    fields.only("suffix", "")
    sampling.refuse_unsupported(fields)
    return Call(
        model, prompts, given, count, stream, sampling.read_usage_wish(fields),
        fields.boolean("return_token_ids") or False, echo, fields.left(),
    )  # fmt: skip


def _logprobs(fields: Fields) -> int | None:
    """A number of alternatives; true and false as some chat clients send them."""
    value = fields.value("logprobs")
    if isinstance(value, bool):
        return 0 if value else None
    return fields.integer("logprobs", 0, sampling.MOST_ALTERNATIVES)


def _prompts(value: Any) -> tuple[TokenRequest, ...]:
    if value is None:
        raise BadField("prompt", "is missing", "missing_required_parameter")
    if isinstance(value, str):
        return (TokenRequest(text=value),)
    if not isinstance(value, list) or not value:
        raise BadField("prompt", "must be a string, a list of strings, a list of token ids or a list of such lists")
    if all(_is_id(item) for item in value):
        return (TokenRequest(ids=tuple(value)),)
    return tuple(_prompt(item, f"prompt.{index}") for index, item in enumerate(value))


def _prompt(item: Any, where: str) -> TokenRequest:
    if isinstance(item, str):
        return TokenRequest(text=item)
    if isinstance(item, list) and item and all(_is_id(number) for number in item):
        return TokenRequest(ids=tuple(item))
    raise BadField(where, "must be a string or a list of token ids", "invalid_type")


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class CompletionWriter(Writer):
    """Events of raw sequences -> text_completion objects."""

    chunk_object, reply_object, id_prefix = "text_completion", "text_completion", "cmpl-"

    def __init__(self, call: Call, model: str, labels: Labels, echoes: tuple[str, ...] = ()) -> None:
        super().__init__(call, model, labels)
        self._echoes = echoes  # the text of each prompt, when it is to be repeated
        self._offsets: dict[int, _Offset] = {}

    def text_choice(self, index: int, event: Text | Reasoning) -> list[dict[str, Any]]:
        """One piece of text, behind the prompt when that is echoed."""
        return [self._choice(index, self._echo(index) + event.text, event.tokens)]

    def last_choice(self, index: int, event: Finish) -> list[dict[str, Any]]:
        """No text (or the whole echo when nothing was generated) and the reason."""
        choice = self._choice(index, self._echo(index), event.tokens if self.call.token_ids else ())
        choice.update(finish_reason=event.reason, stop_reason=event.stop_match)
        return [choice]

    def fold(self, chunks: list[Chunk]) -> list[dict[str, Any]]:
        """Choices of the plain reply, from the stream's own chunks."""
        return [self._folded(index, pieces) for index, pieces in sorted(self.by_index(chunks).items())]

    def _echo(self, index: int) -> str:
        if index in self.begun:
            return ""
        self.begun.add(index)
        return self._echoes[index // self.call.count] if self._echoes else ""

    def _choice(self, index: int, text: str, tokens: tuple[Token, ...]) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
        if self.call.given.get("logprobs") is not None and tokens:
            choice["logprobs"] = self._logprobs(index, tokens)
        if self.call.token_ids:
            choice["token_ids"] = [token.id for token in tokens]
        return choice

    def _logprobs(self, index: int, tokens: tuple[Token, ...]) -> dict[str, list[Any]]:
        offset = self._offsets.setdefault(index, _Offset())
        extra = {"top_ids": [[[n, finite(p)] for n, p in token.top] for token in tokens]} if self.call.token_ids else {}
        return {
            **extra,
            "tokens": [self.labels.key(token.id) for token in tokens],
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": [self._top(token) for token in tokens],
            "text_offset": [offset.step(self.labels.data(token.id)) for token in tokens],
        }

    def _top(self, token: Token) -> dict[str, float]:
        """Alternatives by text and always the chosen token; of two with the same text the likelier stays."""
        found: dict[str, float] = {}
        for number, value in (*token.top, (token.id, token.logprob)):
            found.setdefault(self.labels.key(number), finite(value))
        return found

    def _folded(self, index: int, pieces: list[dict[str, Any]]) -> dict[str, Any]:
        lists = (
            "tokens",
            "token_logprobs",
            "top_logprobs",
            "text_offset",
            *(("top_ids",) if self.call.token_ids else ()),
        )
        logprobs = {n: [item for p in pieces for item in (p["logprobs"] or {}).get(n, ())] for n in lists}
        choice = {
            "index": index,
            "text": "".join(piece["text"] for piece in pieces),
            "logprobs": logprobs if self.call.given.get("logprobs") is not None else None,
            "finish_reason": pieces[-1]["finish_reason"],
            "stop_reason": pieces[-1].get("stop_reason"),
        }
        if self.call.token_ids:
            choice["token_ids"] = [number for piece in pieces for number in piece["token_ids"]]
        return choice


class _Offset:
    """Characters of whole text before the next token."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._count = 0

    def step(self, data: bytes | None) -> int:
        before = self._count
        self._count += len(self._decoder.decode(data or b""))
        return before
