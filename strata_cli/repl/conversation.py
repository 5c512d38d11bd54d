"""A conversation as the chat holds it: messages, system text, parameters, and the moves that /undo and /retry need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from strata_engine.chat import ChatRequest, Message, Part
from strata_engine.config import SamplingParams

STOPPED = " [stopped]"


@dataclass
class Conversation:
    """`messages` hold user and assistant turns only; the system text is put in front when a request is made."""

    model: str
    params: SamplingParams
    system: str = ""
    thinking: bool | str | None = None
    messages: list[Message] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)  # parameters set by the user, for /show params and sessions
    stopped: set[int] = field(default_factory=set)  # indexes of answers that the user cut short

    def request(self, text: str | None = None, images: Sequence[Part] = ()) -> ChatRequest:
        """What to send: everything so far, and `images` and `text` as the next user message."""
        head = [Message.of("system", self.system)] if self.system else []
        tail = [_question(text, images)] if text is not None else []
        return ChatRequest((*head, *self.messages, *tail), thinking=self.thinking)

    def add(
        self, question: str, answer: str, reasoning: str = "", stopped: bool = False, images: Sequence[Part] = ()
    ) -> None:
        """Append one exchange."""
        self.messages.append(_question(question, images))
        if stopped:
            self.stopped.add(len(self.messages))
        self.messages.append(replace(Message.of("assistant", answer), reasoning=reasoning or None))

    def undo(self, count: int = 1) -> int:
        """Drop the last exchanges; how many were dropped."""
        dropped = 0
        while dropped < count and self.messages:
            while self.messages and self.messages.pop().role != "user":
                pass
            dropped += 1
        self.stopped = {index for index in self.stopped if index < len(self.messages)}
        return dropped

    def shown(self) -> list[tuple[str, str]]:
        """(role, text) of every message, cut ones marked."""
        return [(m.role, m.text + (STOPPED if i in self.stopped else "")) for i, m in enumerate(self.messages)]

    def last_question(self) -> str | None:
        """The last user message."""
        return next((m.text for m in reversed(self.messages) if m.role == "user"), None)

    def last_images(self) -> tuple[Part, ...]:
        """The images of the last user message."""
        last = next((m for m in reversed(self.messages) if m.role == "user"), None)
        return tuple(part for part in last.parts if part.kind == "image") if last else ()

    def set(self, **values: object) -> None:
        """Change sampling parameters."""
        self.params = replace(self.params, **values)
        self.changed |= set(values)


def _question(text: str, images: Sequence[Part]) -> Message:
    return Message("user", (*images, Part("text", text)))
