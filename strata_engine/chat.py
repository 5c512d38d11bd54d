"""The neutral request that every front end makes. Plain data; knows no wire format and no template."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Part:
    """One piece of a message. `kind`: text | image. Images carry their bytes and type."""

    kind: str
    text: str = ""
    data: bytes = b""
    media_type: str = ""


@dataclass(frozen=True)
class ToolCall:
    """A call the assistant made. `arguments` as the client sent it: object, JSON string, or None."""

    id: str
    name: str
    arguments: Any = None


@dataclass(frozen=True)
class ToolSpec:
    """A declared function. `parameters` is its JSON schema, unchanged, key order included."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None


@dataclass(frozen=True)
class Message:
    """One turn. `role` is one of ROLES (a front end maps `developer` to `system` and refuses unknown roles)."""

    role: str
    parts: tuple[Part, ...] = ()
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    @staticmethod
    def of(role: str, text: str) -> Message:
        """A message of one text part."""
        return Message(role, (Part("text", text),))

    @property
    def text(self) -> str:
        """All text parts joined."""
        return "".join(p.text for p in self.parts if p.kind == "text")


@dataclass(frozen=True)
class ChatRequest:
    """A conversation to continue.

    `thinking`: None = the model's default, False = off, True = on, or an effort name (low, medium, high).
    `continue_final`: go on writing the last assistant message. `template_kwargs` reach the chat template as they are.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    thinking: bool | str | None = None
    continue_final: bool = False
    template_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenRequest:
    """A raw prompt: text (tokenised with special tokens parsed) or token ids, exactly one of them."""

    text: str | None = None
    ids: tuple[int, ...] | None = None
