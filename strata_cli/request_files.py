"""Conversations and tools from JSON files in OpenAI's form, for commands: FILE -> ChatRequest."""

from __future__ import annotations

import json
from typing import Any

from strata_cli.model_text import read_stdin, read_text
from strata_cli.server.fields import Fields
from strata_cli.server.openai.messages import read_messages
from strata_engine.chat import ChatRequest, Message, ToolSpec
from strata_engine.errors import UsageError

_LEVELS = {"on": True, "none": False, "off": False}


def read_request(messages: str | None, tools: str | None, think: str | None) -> ChatRequest:
    """A request from a messages file (None: one short question; -: standard input), a tools file, a thinking level.

    Raises NotFound, UsageError.
    """
    turns = (Message.of("user", "Hello! How are you?"),)
    if messages is not None:
        text = read_stdin() if messages == "-" else read_text(messages)
        content = _parsed(text, messages)
        turns = read_messages(Fields(content if isinstance(content, dict) else {"messages": content}))
    declared = _tools(_parsed(read_text(tools), tools), tools) if tools is not None else ()
    return ChatRequest(turns, declared, None if think is None else _LEVELS.get(think.lower(), think))


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: not valid JSON ({error})") from error


def _tools(content: Any, name: str) -> tuple[ToolSpec, ...]:
    items = content.get("tools") if isinstance(content, dict) else content
    if not isinstance(items, list):
        raise UsageError(f"{name}: a list of tools is expected")
    specs: list[ToolSpec] = []
    for index, item in enumerate(items):
        function = item.get("function", item) if isinstance(item, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UsageError(f"{name}: tool {index} has no function with a name")
        parameters = function.get("parameters")
        if not isinstance(parameters, dict | None):
            raise UsageError(f"{name}: the parameters of tool {index} are no JSON schema object")
        specs.append(ToolSpec(function["name"], str(function.get("description") or ""), parameters))
    return tuple(specs)
