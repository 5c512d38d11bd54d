"""Turns -> the messages one template can take, by its traits. What a template lacks is expressed in what it has.

Order: system messages, tools and tool turns, system role, neighbours, then plain dictionaries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from strata_engine.events import Notice
from strata_engine.text.conversation import Call, Turn
from strata_engine.text.traits import Traits

LATE_SYSTEM = "[system message]\n"
_GAP = "\n\n"
_TOOL_PROMPT = (
    "You can call these functions. Each line is the JSON schema of one:\n{tools}\n\n"
    "To call one, answer with nothing but a block of this form, one block for each call:\n"
    '<tool_call>\n{{"name": "function name", "arguments": {{"argument": "value"}}}}\n</tool_call>'
)


def normalise(
    turns: Sequence[Turn], tools: Sequence[dict[str, Any]], traits: Traits, hoist: bool = False
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None, list[Notice]]:
    """Messages, tools and notices for the template. `hoist`: late system messages go to the front too.

    By default a late system message becomes a marked user turn: hoisting would change the start of the prompt, and so
    all that a prefix cache holds.
    """
    notices: list[Notice] = []
    system, rest = _gather(turns, hoist)
    given: list[dict[str, Any]] | None = list(tools) or None
    if given and not traits.tools:
        notices.append(
            Notice("tools-generic", "the chat template knows no tools; they are described in the system text")
        )
        lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in given)
        system.append(_TOOL_PROMPT.format(tools=lines))
        given = None
    if any(t.calls or t.role == "tool" for t in rest) and not traits.tool_turns:
        notices.append(Notice("tool-turns-plain", "the chat template knows no tool calls; they are written as text"))
        rest = [_plain(t) for t in rest]
    if system:
        rest = _with_system(_GAP.join(system), rest, traits)
    if _has_neighbours(rest) and not traits.repeats:
        rest = _merged(rest)
    return [_message(turn, traits, number) for number, turn in enumerate(rest)], given, notices


def _gather(turns: Sequence[Turn], hoist: bool) -> tuple[list[str], list[Turn]]:
    """Leading system texts, and the other turns with late system messages marked."""
    system: list[str] = []
    rest: list[Turn] = []
    for turn in turns:
        if turn.role != "system":
            rest.append(turn)
        elif hoist or not rest:
            system.append(turn.text)
        else:
            rest.append(Turn("user", LATE_SYSTEM + turn.text))
    return system, rest


def _with_system(text: str, turns: list[Turn], traits: Traits) -> list[Turn]:
    if traits.system_role:
        return [Turn("system", text), *turns]
    if turns and turns[0].role == "user":
        return [replace(turns[0], text=text + _GAP + turns[0].text), *turns[1:]]
    return [Turn("user", text), *turns]


def _plain(turn: Turn) -> Turn:
    """Calls and results as text, for templates that know neither."""
    if turn.role == "tool":
        return Turn("user", f"<tool_response>\n{turn.text}\n</tool_response>")
    if not turn.calls:
        return turn
    blocks = [f"<tool_call>\n{_call_text(c)}\n</tool_call>" for c in turn.calls]
    return replace(turn, text="\n".join([turn.text, *blocks] if turn.text else blocks), calls=())


def _call_text(call: Call) -> str:
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def _has_neighbours(turns: list[Turn]) -> bool:
    return any(a.role == b.role and a.role in ("user", "assistant") for a, b in zip(turns, turns[1:], strict=False))


def _merged(turns: list[Turn]) -> list[Turn]:
    merged: list[Turn] = []
    for turn in turns:
        last = merged[-1] if merged else None
        if last is None or last.role != turn.role or turn.role not in ("user", "assistant"):
            merged.append(turn)
            continue
        text = _GAP.join(t for t in (last.text, turn.text) if t)
        reasoning = _GAP.join(t for t in (last.reasoning, turn.reasoning) if t) or None
        merged[-1] = replace(last, text=text, reasoning=reasoning, calls=last.calls + turn.calls)
    return merged


def _message(turn: Turn, traits: Traits, number: int) -> dict[str, Any]:
    content: Any = [{"type": "text", "text": turn.text}] if traits.wants_parts else turn.text
    message: dict[str, Any] = {"role": turn.role, "content": content}
    if turn.reasoning is not None:
        # Both names that clients and templates use.
        message["reasoning_content"] = message["reasoning"] = turn.reasoning
    if turn.calls:
        shorten = _shortener(traits)
        message["tool_calls"] = [
            {
                "id": shorten(call.id or f"call_{number}_{index}"),
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call, traits)},
            }
            for index, call in enumerate(turn.calls)
        ]
    if turn.role == "tool" and turn.call_id is not None:
        message["tool_call_id"] = _shortener(traits)(turn.call_id)
    if turn.name is not None:
        message["name"] = turn.name
    return message


def _arguments(call: Call, traits: Traits) -> Any:
    return json.dumps(call.arguments, ensure_ascii=False) if traits.argument_text else call.arguments


def _shortener(traits: Traits) -> Callable[[str], str]:
    if not traits.short_ids:
        return str
    return lambda text: text if len(text) == 9 and text.isalnum() and text.isascii() else _nine(text)


def _nine(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:9]
