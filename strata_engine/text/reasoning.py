"""Splits a reply into thinking and answer. Tags count only where a thinking phase begins and where it ends.

Phases: head (blanks, then perhaps a tag) -> thinking -> gap (line breaks after the closing tag, dropped) -> answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from strata_engine.text.hold import held_length

OPEN, CLOSE = "<think>", "</think>"
ANSWER, THINKING, MAYBE_THINKING = "answer", "thinking", "maybe-thinking"
STATES = (ANSWER, THINKING, MAYBE_THINKING)
_BREAKS = "\r\n"

# Tags that may stand at the very start of a reply: the opening one where a thought may begin (or was begun by the
# prompt and is repeated), the closing one as a leftover of a thought that the prompt closed.
_HEAD_TAGS = {ANSWER: (CLOSE,), THINKING: (OPEN,), MAYBE_THINKING: (OPEN, CLOSE)}


class ThinkSplitter:
    """One reply. `start` is where it begins: answer, thinking or maybe-thinking. `tags` False: all text is answer."""

    def __init__(self, start: str = ANSWER, tags: bool = True) -> None:
        if start not in STATES:
            raise ValueError(f"unknown start state {start!r}; known: {', '.join(STATES)}")
        self._start = start if tags else ANSWER
        self._phase = "head" if tags else ANSWER
        self._held = ""

    @property
    def answering(self) -> bool:
        """Everything from here on is answer, as it comes."""
        return self._phase == ANSWER

    def feed(self, text: str) -> list[tuple[bool, str]]:
        """Parts that are sure now: (is thinking, text), no empty texts."""
        if self._phase == ANSWER:
            return [(False, text)]
        self._held += text
        return list(self._take())

    def close(self) -> list[tuple[bool, str]]:
        """What was held back, at the end of the reply."""
        rest, self._held = self._held, ""
        if not rest or self._phase == "gap":
            return []
        return [(self._phase == THINKING or (self._phase == "head" and self._start == THINKING), rest)]

    def _take(self) -> Iterator[tuple[bool, str]]:
        if self._phase == "head" and not self._head():
            return
        if self._phase == "indent":
            self._held = self._held.lstrip(_BREAKS)
            self._phase = THINKING if self._held else "indent"
        if self._phase == THINKING:
            thought = self._thought()
            if thought:
                yield True, thought
        if self._phase == "gap":
            self._held = self._held.lstrip(_BREAKS)
            self._phase = ANSWER if self._held else "gap"
        if self._phase == ANSWER and self._held:
            rest, self._held = self._held, ""
            yield False, rest

    def _head(self) -> bool:
        """Decide what the reply starts with; False while that is open."""
        body = self._held.lstrip()
        tags = _HEAD_TAGS[self._start]
        for tag in tags:
            if body.startswith(tag):
                self._held = body[len(tag) :]
                self._phase = "indent" if tag == OPEN else "gap"
                return True
        if not body or any(tag.startswith(body) for tag in tags):
            return False
        self._phase = THINKING if self._start == THINKING else ANSWER
        return True

    def _thought(self) -> str:
        """The thinking text that is sure; what follows a closing tag stays held."""
        at = self._held.find(CLOSE)
        if at >= 0:
            thought, self._held = self._held[:at], self._held[at + len(CLOSE) :]
            self._phase = "gap"
            return thought
        keep = len(self._held) - held_length(self._held, (CLOSE,))
        thought, self._held = self._held[:keep], self._held[keep:]
        return thought
