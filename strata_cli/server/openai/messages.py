"""Messages as OpenAI clients send them -> Message. Each fault names its place, like messages.2.content."""

from __future__ import annotations

from typing import Any

from strata_cli.server.errors import BadField, unsupported
from strata_cli.server.fields import Fields
from strata_cli.server.images import image_part
from strata_engine.chat import ROLES, Message, Part, ToolCall

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_IMAGE_PARTS = ("image_url", "image", "input_image")


def read_messages(fields: Fields, name: str = "messages") -> tuple[Message, ...]:
    """All turns. Raises BadField; an empty list or two assistant turns at the end are faults too."""
    items = fields.items(name)
    if not items:
        raise BadField(fields.path(name), "must be a list with at least one message", "missing_required_parameter")
    messages = tuple(_message(item, f"{name}.{index}") for index, item in enumerate(items))
    if len(messages) > 1 and messages[-1].role == messages[-2].role == "assistant":
        raise BadField(name, "two assistant messages at the end")
    return messages


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, dict):
        raise BadField(where, "must be an object", "invalid_type")
    fields = Fields(item, where)
    role = fields.text("role")
    if role is None:
        raise BadField(f"{where}.role", "is missing", "missing_required_parameter")
    role = "system" if role == "developer" else role
    if role not in ROLES:
        raise BadField(f"{where}.role", f"unknown role {role[:40]!r} (system, developer, user, assistant or tool)")
    parts = _parts(fields.value("content"), f"{where}.content")
    calls = _calls(fields) if role == "assistant" else ()
    if parts is None and role != "assistant":
        raise BadField(f"{where}.content", "is missing", "missing_required_parameter")
    return Message(
        role,
        parts or (),
        fields.text("reasoning_content") or fields.text("reasoning"),
        calls,
        fields.text("tool_call_id"),
        fields.text("name"),
    )


def _parts(value: Any, where: str) -> tuple[Part, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return (Part("text", value),)
    if not isinstance(value, list):
        raise BadField(where, "must be a string or a list of parts", "invalid_type")
    return tuple(_part(item, f"{where}.{index}") for index, item in enumerate(value))


def _part(item: Any, where: str) -> Part:
    if not isinstance(item, dict):
        raise BadField(where, "must be an object", "invalid_type")
    fields = Fields(item, where)
    kind = fields.text("type")
    if kind in _TEXT_PARTS:
        name = _TEXT_PARTS[kind]
        text = fields.text(name)
        if text is None:
            raise BadField(f"{where}.{name}", "is missing", "missing_required_parameter")
        return Part("text", text)
    if kind in _IMAGE_PARTS:
        name = "image_url" if kind == "input_image" else kind
        return image_part(fields.value(name), f"{where}.{name}")
    raise unsupported(f"{where}.type", f"a part of type {kind!r}")


def _calls(fields: Fields) -> tuple[ToolCall, ...]:
    """tool_calls, or the older single function_call."""
    old = fields.object("function_call")
    calls = tuple(
        _call(item, f"{fields.path('tool_calls')}.{i}") for i, item in enumerate(fields.items("tool_calls") or ())
    )
    if old is None or calls:
        return calls
    return (_function("", Fields(old, fields.path("function_call"))),)


def _call(item: Any, where: str) -> ToolCall:
    if not isinstance(item, dict):
        raise BadField(where, "must be an object", "invalid_type")
    fields = Fields(item, where)
    kind = fields.text("type")
    if kind not in (None, "function"):
        raise unsupported(f"{where}.type", f"a call of type {kind!r}")
    function = fields.object("function")
    if function is None:
        raise BadField(f"{where}.function", "is missing", "missing_required_parameter")
    return _function(fields.text("id") or "", Fields(function, f"{where}.function"))


def _function(call_id: str, fields: Fields) -> ToolCall:
    name = fields.text("name")
    if not name:
        raise BadField(fields.path("name"), "is missing", "missing_required_parameter")
    return ToolCall(call_id, name, fields.value("arguments"))
