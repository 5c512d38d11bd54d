"""POST /v1/chat/completions: body -> Call, events -> chunks."""

from __future__ import annotations

from typing import Any

from strata_cli.server.errors import BadField, unsupported
from strata_cli.server.fields import Fields
from strata_cli.server.openai import sampling
from strata_cli.server.openai.call import Call
from strata_cli.server.openai.messages import read_messages
from strata_cli.server.openai.writer import Chunk, Writer
from strata_engine.chat import ChatRequest
from strata_engine.events import Finish, Reasoning, Text, Token

_EFFORTS = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
_NOT_YET = ("functions", "audio", "web_search_options", "prediction", "documents", "reasoning_budget_tokens",
            "thinking_budget_tokens", "thinking_token_budget")  # fmt: skip


def read(body: dict[str, Any]) -> Call:
    """Raises BadField (400) with the field's name."""
    fields = Fields(body)
    model = fields.text("model") or ""
    stream = fields.boolean("stream") or False
    messages = read_messages(fields)
    given = sampling.read_sampling(fields)
    logprobs = _logprobs(fields)
    if logprobs is not None:
        given["logprobs"] = logprobs
    kwargs = fields.object("chat_template_kwargs") or {}
    continued = _continue(fields, messages[-1].role)
    _refuse(fields)
    sampling.refuse_unsupported(fields)
    request = ChatRequest(messages, (), _thinking(fields, kwargs), continued, kwargs)
    return Call(
        model, (request,), given, sampling.read_choices(fields), stream, sampling.read_usage_wish(fields),
        fields.boolean("return_token_ids") or False, False, _ignored(fields, body),
    )  # fmt: skip


def _ignored(fields: Fields, body: dict[str, Any]) -> tuple[str, ...]:
    # Tools with tool_choice none are not shown to the model: say so.
    return (*fields.left(), *(("tools",) if body.get("tools") else ()))


def _logprobs(fields: Fields) -> int | None:
    wanted = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, sampling.MOST_ALTERNATIVES)
    if top is not None and not wanted:
        raise BadField("top_logprobs", "needs logprobs: true")
    return (top or 0) if wanted else None


def _continue(fields: Fields, last_role: str) -> bool:
    wanted = fields.boolean("continue_final_message") or False
    prompt = fields.boolean("add_generation_prompt")
    if wanted and prompt:
        raise BadField("add_generation_prompt", "cannot be true together with continue_final_message")
    if wanted and last_role != "assistant":
        raise BadField("continue_final_message", "needs an assistant message at the end")
    if prompt is False and not wanted:
        raise unsupported("add_generation_prompt", "false without continue_final_message")
    return wanted


def _thinking(fields: Fields, kwargs: dict[str, Any]) -> bool | str | None:
    """reasoning_effort, reasoning.effort or chat_template_kwargs.enable_thinking; None = the model's default."""
    effort, where = fields.text("reasoning_effort"), "reasoning_effort"
    nested = fields.object("reasoning")
    if effort is None and nested is not None:
        effort, where = Fields(nested, "reasoning").text("effort"), "reasoning.effort"
    if effort is not None:
        if effort not in _EFFORTS:
            raise BadField(where, f"unknown effort {effort[:40]!r} ({', '.join(_EFFORTS)})")
        return _EFFORTS[effort]
    return Fields(kwargs, "chat_template_kwargs").boolean("enable_thinking")


def _refuse(fields: Fields) -> None:
    _refuse_tools(fields)
    for name in _NOT_YET:
        if fields.value(name) not in (None, "", {}, []):
            raise unsupported(name, "this field")
    fields.only("function_call", "none")
    fields.only("modalities", ["text"], [])
    fields.only("reasoning_format", "auto", "deepseek")
    fields.only("separate_reasoning", True)
    fields.only("parse_tool_calls", True)
    response = fields.object("response_format")
    kind = response.get("type") if response else None
    if kind not in (None, "text"):
        raise unsupported("response_format", f"the type {str(kind)[:40]!r}")


def _refuse_tools(fields: Fields) -> None:
    tools, choice = fields.items("tools"), fields.value("tool_choice")
    fields.boolean("parallel_tool_calls")
    if choice == "none":
        return
    if tools:
        raise unsupported("tools", "calling tools")
    if choice not in (None, "auto"):
        raise unsupported("tool_choice", "calling tools")


class ChatWriter(Writer):
    """Events of chat sequences -> chat.completion.chunk objects."""

    chunk_object, reply_object, id_prefix = "chat.completion.chunk", "chat.completion", "chatcmpl-"

    def text_choice(self, index: int, event: Text | Reasoning) -> list[dict[str, Any]]:
        """The role goes out in the same write as the first text: alone it would look like an early first token."""
        if isinstance(event, Reasoning):
            delta: dict[str, Any] = {"reasoning_content": event.text, "reasoning": event.text}
        else:
            delta = {"content": event.text}
        return [*self._role(index), self._choice(index, delta, event.tokens)]

    def last_choice(self, index: int, event: Finish) -> list[dict[str, Any]]:
        """Empty delta with the reason. Tokens that never gave text are listed only next to token ids."""
        choice = self._choice(index, {}, event.tokens if self.call.token_ids else ())
        choice.update(finish_reason=event.reason, stop_reason=event.stop_match)
        return [*self._role(index), choice]

    def _role(self, index: int) -> list[dict[str, Any]]:
        if index in self.begun:
            return []
        self.begun.add(index)
        return [self._choice(index, {"role": "assistant", "content": ""}, ())]

    def _choice(self, index: int, delta: dict[str, Any], tokens: tuple[Token, ...]) -> dict[str, Any]:
        wanted = self.call.given.get("logprobs") is not None and tokens
        entries = {"content": [self.labels.entry(token) for token in tokens], "refusal": None} if wanted else None
        choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": entries, "finish_reason": None}
        if self.call.token_ids:
            choice["token_ids"] = [token.id for token in tokens]
        return choice

    def fold(self, chunks: list[Chunk]) -> list[dict[str, Any]]:
        """The choices of a reply that was not streamed, put together from the very chunks a stream would have sent."""
        return [self._folded(index, pieces) for index, pieces in sorted(self.by_index(chunks).items())]

    def _folded(self, index: int, pieces: list[dict[str, Any]]) -> dict[str, Any]:
        def joined(name: str) -> str:
            return "".join(piece["delta"].get(name, "") for piece in pieces)

        message: dict[str, Any] = {"role": "assistant", "content": joined("content"), "refusal": None}
        if any("reasoning" in piece["delta"] for piece in pieces):
            message["reasoning_content"] = message["reasoning"] = joined("reasoning")
        entries = [entry for piece in pieces for entry in (piece["logprobs"] or {}).get("content", ())]
        asked = self.call.given.get("logprobs") is not None
        choice = {
            "index": index,
            "message": message,
            "logprobs": {"content": entries, "refusal": None} if asked else None,
            "finish_reason": pieces[-1]["finish_reason"],
            "stop_reason": pieces[-1].get("stop_reason"),
        }
        if self.call.token_ids:
            choice["token_ids"] = [number for piece in pieces for number in piece["token_ids"]]
        return choice
