"""Both directions of the client's wire: our records -> request bodies, reply chunks -> events."""

from __future__ import annotations

import base64
import json
from dataclasses import fields
from typing import Any

from strata_engine.chat import ChatRequest, Message, Part, TokenRequest
from strata_engine.config import SamplingParams
from strata_engine.errors import LlmrunError, NotFound, RequestRefused, ServerError, UsageError
from strata_engine.events import Drafts, Event, Finish, Notice, Reasoning, Started, Text, Timings, Token, Usage
from strata_engine.runtime.api import Load, LoadedModel

CHAT_PATH, RAW_PATH = "/v1/chat/completions", "/v1/completions"


def request_body(model: str, request: ChatRequest | TokenRequest, params: SamplingParams) -> tuple[str, dict[str, Any]]:
    """Route and body of one streamed sequence. Raises UsageError for what the wire cannot carry."""
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        **_params(params),
    }
    if isinstance(request, TokenRequest):
        body["prompt"] = request.text if request.ids is None else list(request.ids)
        body["logprobs"] = params.logprobs
        return RAW_PATH, body
    if request.tools:
        raise UsageError("tools cannot be sent to a server yet", "--no-server")
    body["messages"] = [_message(message) for message in request.messages]
    if params.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": params.logprobs}
    if request.continue_final:
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    body["chat_template_kwargs"] = dict(request.template_kwargs) or None
    if isinstance(request.thinking, bool):
        body["chat_template_kwargs"] = {**request.template_kwargs, "enable_thinking": request.thinking}
    else:
        body["reasoning_effort"] = request.thinking
    return CHAT_PATH, body


def _params(params: SamplingParams) -> dict[str, Any]:
    return {
        "max_tokens": -1 if params.max_tokens is None else params.max_tokens,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_penalty": params.repeat_penalty,
        "repeat_last_n": params.penalty_last_n,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "seed": params.seed,
        "stop": list(params.stop),
        "stop_token_ids": list(params.stop_token_ids),
        "ignore_eos": params.ignore_eos,
        "min_tokens": params.min_tokens,
        "logit_bias": [list(pair) for pair in params.logit_bias],
        "include_stop_str_in_output": params.include_stop,
        "speculate": params.speculate,
    }


def _message(message: Message) -> dict[str, Any]:
    images = any(part.kind == "image" for part in message.parts)
    content = [_part(part) for part in message.parts] if images else message.text
    found: dict[str, Any] = {"role": message.role, "content": content}
    if message.reasoning is not None:
        found["reasoning_content"] = message.reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    found |= {name: value for name in ("tool_call_id", "name") if (value := getattr(message, name)) is not None}
    return found


def _part(part: Part) -> dict[str, Any]:
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    kind = part.media_type or "application/octet-stream"
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{base64.b64encode(part.data).decode()}"}}


class ChunkReader:
    """Chunks of one streamed sequence -> events. `finish` is set by the end of the stream.

    `Started` carries 0 prompt tokens: the wire tells the count at the end, in Finish.
    """

    def __init__(self) -> None:
        self.made = 0
        self._begun = False
        self._last: dict[str, Any] = {}
        self._tokens: tuple[Token, ...] = ()
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}

    def feed(self, chunk: dict[str, Any]) -> list[Event]:
        """Events of one chunk. Raises the error an error chunk carries."""
        if "error" in chunk:
            raise error_of(chunk)
        events: list[Event] = [] if self._begun else [Started(str(chunk.get("id", "")), 0)]
        self._begun = True
        events += [Notice(str(w.get("code")), str(w.get("message"))) for w in chunk.get("warnings") or ()]
        self._usage = chunk.get("usage") or self._usage
        self._timings = chunk.get("timings") or self._timings
        for choice in chunk.get("choices") or ():
            events += self._choice(choice)
        return events

    def _choice(self, choice: dict[str, Any]) -> list[Event]:
        tokens = _tokens(choice)
        self.made += len(tokens)
        delta = choice.get("delta") or {}
        text, reasoning = delta.get("content") or choice.get("text") or "", delta.get("reasoning") or ""
        events: list[Event] = []
        if reasoning:
            events.append(Reasoning(reasoning, tokens))
        elif choice.get("finish_reason") is not None:
            self._last, self._tokens = choice, tokens
            if text:
                events.append(Text(text))
        elif text or tokens:
            events.append(Text(text, tokens))
        return events

    def end(self) -> Finish:
        """After [DONE]. Raises ServerError when no choice had ended."""
        if not self._last:
            raise ServerError("the server ended the stream without a reason")
        reason, match = self._last["finish_reason"], self._last.get("stop_reason")
        return Finish(reason, self._use(), self._spent(), match, self._tokens, self._drafts())

    def cancelled(self) -> Finish:
        """The end of a stream this side closed."""
        return Finish("cancelled", Usage(completion_tokens=self.made))

    def _use(self) -> Usage:
        use = self._usage
        return Usage(
            use.get("prompt_tokens", 0),
            use.get("completion_tokens", 0),
            (use.get("completion_tokens_details") or {}).get("reasoning_tokens", 0),
            (use.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        )

    def _spent(self) -> Timings:
        names = ("queue_ms", "prompt_ms", "predicted_ms", "first_token_ms")
        return Timings(*(self._timings.get(name, 0.0) / 1e3 for name in names))

    def _drafts(self) -> Drafts | None:
        given = self._timings
        if "draft_steps" not in given:
            return None
        plain_ms = given.get("draft_plain_ms")
        return Drafts(
            given["draft_steps"],
            given["draft_rounds"],
            given["draft_n"],
            given["draft_n_accepted"],
            tuple(given["draft_by_position"]),
            None if plain_ms is None else plain_ms / 1e3,
        )


def _tokens(choice: dict[str, Any]) -> tuple[Token, ...]:
    ids = choice.get("token_ids") or ()
    logprobs = choice.get("logprobs") or {}
    if "content" in logprobs and len(logprobs["content"] or ()) == len(ids):
        return tuple(
            Token(number, entry["logprob"], tuple((top["id"], top["logprob"]) for top in entry["top_logprobs"]))
            for number, entry in zip(ids, logprobs["content"], strict=True)
        )
    if "top_ids" in logprobs:
        rows = zip(ids, logprobs["token_logprobs"], logprobs["top_ids"], strict=True)
        return tuple(Token(number, value, tuple((n, p) for n, p in top)) for number, value, top in rows)
    return tuple(Token(number) for number in ids)


def error_of(body: Any, status: int = 500) -> LlmrunError:
    """The error of a reply, as the class that was raised on the other side where its code tells."""
    inner = body.get("error") if isinstance(body, dict) else None
    if not isinstance(inner, dict):
        return ServerError(f"the server answered {status}")
    message, hint = str(inner.get("message", "")), str(inner.get("hint", ""))
    details = {k: v for k, v in inner.items() if k not in ("message", "type", "code", "hint")}
    known = _classes().get(str(inner.get("code")))
    if known is None:
        known = {400: UsageError, 404: NotFound}.get(status, ServerError)
    return known(message, hint, details)


def _classes() -> dict[str, type[LlmrunError]]:
    found: dict[str, type[LlmrunError]] = {}
    waiting: list[type[LlmrunError]] = [RequestRefused, *LlmrunError.__subclasses__()]
    while waiting:
        one = waiting.pop()
        waiting += one.__subclasses__()
        if one.__module__ == LlmrunError.__module__:
            found[one.code] = one
    return found


def read_json(data: bytes, status: int) -> Any:
    """A reply's JSON; raises ServerError for anything else."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise ServerError(f"the server answered {status} without JSON: {data[:80]!r}") from error


def loaded_model(value: dict[str, Any]) -> LoadedModel:
    """The record our status route prints."""
    names = {field.name for field in fields(LoadedModel)}
    given = {name: item for name, item in value.items() if name in names}
    defaults = {name: _frozen(item) for name, item in given.pop("defaults", {}).items()}
    capabilities = tuple(given.pop("capabilities", ()))
    return LoadedModel(**given, capabilities=capabilities, defaults=SamplingParams(**defaults))


def load_numbers(value: dict[str, Any]) -> Load:
    """The live numbers our status route prints."""
    return Load(**{name: _frozen(item) for name, item in value.items()})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
