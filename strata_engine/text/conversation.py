"""Messages as a client sent them -> turns every template can take: roles, joined text, parsed tool arguments.

Pure data; knows no template. What a given template cannot take is changed in normalise.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from strata_engine.chat import ROLES, Message, ToolCall, ToolSpec
from strata_engine.errors import RequestRefused
from strata_engine.text.tokenizer import whole

# Where arguments that are no JSON object go; the text is kept as it came.
RAW_ARGUMENTS = "arguments"


@dataclass(frozen=True)
class Call:
    """A tool call with its arguments as an object."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """One message in the making."""

    role: str
    text: str
    reasoning: str | None = None
    calls: tuple[Call, ...] = field(default_factory=tuple)
    call_id: str | None = None
    name: str | None = None


def read_turns(messages: Sequence[Message], image_mark: str = "") -> list[Turn]:
    """Turns of a conversation; `image_mark` stands in their text for each image.

    Raises RequestRefused: no messages, unknown role, an image without a mark or in a system message.
    """
    if not messages:
        raise RequestRefused("the conversation has no messages")
    names: dict[str, str] = {}
    turns = [_turn(index, message, names, image_mark) for index, message in enumerate(messages)]
    return turns


def read_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Declared functions in the form templates expect; schemas unchanged, key order included."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters if tool.parameters is not None else {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]


def parse_arguments(value: Any) -> dict[str, Any]:
    """Arguments as an object: "" and null are {}, arrays, scalars and broken JSON stay text under one key."""
    if isinstance(value, dict):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if not text.strip():
        return {}
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return {RAW_ARGUMENTS: text}
    if parsed is None:
        return {}
    return parsed if isinstance(parsed, dict) else {RAW_ARGUMENTS: text}


def has_images(messages: Sequence[Message]) -> bool:
    """Does any message hold an image?"""
    return any(part.kind == "image" for message in messages for part in message.parts)


def _turn(index: int, message: Message, names: dict[str, str], image_mark: str) -> Turn:
    role = "system" if message.role == "developer" else message.role
    if role not in ROLES:
        raise RequestRefused(
            f"message {index} has the unknown role {message.role!r}", f"known roles: {', '.join(ROLES)}, developer"
        )
    if any(part.kind != "text" for part in message.parts):
        if not image_mark:
            text = f"message {index} holds an image, but this model takes text only"
            raise RequestRefused(text, "a model with vision")
        if role == "system":
            raise RequestRefused(f"message {index} is a system message with an image", "put images in user messages")
    calls = tuple(_call(call) for call in message.tool_calls) if role == "assistant" else ()
    names.update((call.id, call.name) for call in calls)
    return Turn(
        role=role,
        text=whole("".join(part.text if part.kind == "text" else image_mark for part in message.parts)),
        reasoning=whole(message.reasoning) if message.reasoning and role == "assistant" else None,
        calls=calls,
        call_id=message.tool_call_id,
        name=message.name or (names.get(message.tool_call_id or "") if role == "tool" else None),
    )


def _call(call: ToolCall) -> Call:
    return Call(call.id, call.name, parse_arguments(call.arguments))
