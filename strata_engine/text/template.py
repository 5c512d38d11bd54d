"""A model's chat format: conversation -> prompt ids, reply tokens -> events.

Flow of render: turns (conversation) -> messages this template can take (normalise) -> text (sandbox) -> which control
tokens are real (marks) -> ids, exactly one BOS where the model wants one, and where the reply starts (thinking).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from strata_engine.chat import ChatRequest
from strata_engine.errors import RequestRefused
from strata_engine.events import Notice
from strata_engine.text.base import Rendered
from strata_engine.text.budget import Budget
from strata_engine.text.conversation import Turn, has_images, read_tools, read_turns
from strata_engine.text.images import mark_for, put_images
from strata_engine.text.marks import Found, Marker, leaves, transfer, unused_mark
from strata_engine.text.normalise import normalise
from strata_engine.text.reader import StreamReader
from strata_engine.text.reasoning import ANSWER, OPEN, ThinkSplitter
from strata_engine.text.sandbox import Compiled
from strata_engine.text.stop import StopFilter
from strata_engine.text.thinking import start_state, thinking_values
from strata_engine.text.tokenizer import BpeTokenizer, whole
from strata_engine.text.traits import Traits

_BASE_CHARS = 1 << 22  # text a template may add of its own
_PROBE_CHARS = 1 << 20
_OURS = frozenset(("messages", "tools", "add_generation_prompt", "bos_token", "eos_token"))
_CUT = "\ue000"  # ends the message that is to be continued; never left in a prompt


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt before tokenising: its text and the spellings of control tokens in it."""

    text: str
    found: list[Found]
    notices: list[Notice]


class ChatTemplate:
    """The ChatFormat of strata_engine.text.base. Safe to use from several threads."""

    def __init__(self, source: str, tokenizer: BpeTokenizer, now: datetime | None = None) -> None:
        """`now` fixes the clock of templates that print the date. Raises UsageError for an invalid template."""
        self._template = Compiled(source, (lambda: now) if now else datetime.now)
        self._tokenizer = tokenizer
        self._marker = Marker(tokenizer.specials)
        self.traits = Traits(lambda values: self._fill(values, Budget(_PROBE_CHARS)))

    @property
    def source(self) -> str:
        """The template's text."""
        return self._template.source

    @cached_property
    def knows_thinking(self) -> bool:
        """The template or the vocabulary has thinking tags."""
        return OPEN in self._template.source or OPEN in self._tokenizer.specials.tags

    def render(self, request: ChatRequest, generation_prompt: bool = True) -> Rendered:
        """The prompt.

        The template value `hoist_system` (true) moves late system messages to the front in place of a marked user turn.
        Raises RequestRefused when the conversation cannot be rendered, UsageError for an unknown thinking effort.
        """
        try:
            prompt = self._prompt(request, generation_prompt)
        except RecursionError as error:
            raise RequestRefused("tool schemas, arguments or template values are nested too deeply") from error
        plain = {f.start for f in prompt.found if f.plain}
        ids = self.with_bos(self._tokenizer.encode_marked(prompt.text, plain))
        state = ANSWER
        if generation_prompt or request.continue_final:
            state = start_state(prompt.text, prompt.found, self.knows_thinking, request.continue_final)
        return Rendered(tuple(ids), prompt.text, self._tokenizer.eos_ids, state, tuple(prompt.notices))

    def reader(self, state: str, stop: Sequence[str] = (), include_stop: bool = False) -> StreamReader:
        """A reader for one reply. Stop strings apply to the answer, not to the thinking."""
        tokenizer = self._tokenizer
        splitter = ThinkSplitter(state, tags=self.knows_thinking or state != ANSWER)
        return StreamReader(tokenizer.piece, tokenizer.is_control, splitter, StopFilter(stop, include_stop))

    def with_bos(self, ids: list[int]) -> list[int]:
        """The ids with exactly one BOS in front where the model wants one; templates write none, one, or even two."""
        bos_id = self._tokenizer.bos_id
        if not self._tokenizer.add_bos or bos_id is None:
            return ids
        written = next((n for n, i in enumerate(ids) if i != bos_id), len(ids))
        return [bos_id, *ids[written:]]

    def _prompt(self, request: ChatRequest, generation_prompt: bool) -> Prompt:
        _check_values(request.template_kwargs)
        mark = mark_for(request.messages, self._tokenizer.specials.control) if has_images(request.messages) else ""
        turns = read_turns(request.messages, mark)
        if request.continue_final:
            turns = _open_ended(turns)
        hoist = bool(request.template_kwargs.get("hoist_system"))
        messages, tools, notices = normalise(turns, read_tools(request.tools), self.traits, hoist)
        thinking, more = thinking_values(request.thinking, self._template, self.knows_thinking)
        values = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": generation_prompt and not request.continue_final,
            **thinking,
            **request.template_kwargs,
        }
        size = sum(map(len, leaves(values)))
        text = self._text(values, size)
        text, found, warnings = self._real(values, size, text)
        lost = _lost(turns, text)
        if request.continue_final:
            text, found = _cut(text, found)
        if mark:
            images = sum(part.kind == "image" for message in request.messages for part in message.parts)
            numbered = bool(request.template_kwargs.get("add_vision_id"))
            text, found = put_images(text, found, mark, images, numbered)
        return Prompt(text, found, [*notices, *more, *warnings, *lost])

    def _real(self, values: dict[str, Any], size: int, text: str) -> tuple[str, list[Found], list[Notice]]:
        """The prompt's text and spellings, those that message text brought marked as plain."""
        found = self._marker.find(text)
        messages = values["messages"]
        others = {k: v for k, v in values.items() if k != "messages"}
        if not self._marker.needed([messages, others]):
            return text, found, []
        mark = unused_mark(text, self._template.source, *leaves(values))
        marked = self._text({**self._marker.mark(others, mark), "messages": self._marked(messages, mark)}, size * 2)
        shown = self._marker.find(marked, mark)
        exact = transfer(found, shown)
        if exact is not None:
            return text, exact, []
        # The template looked at the marked text and chose another way. That rendering is the safe one.
        notice = Notice(
            "template-marks", "message text with control tokens changed the prompt; they are kept as plain text"
        )
        return marked.replace(mark, ""), shown, [notice]

    def _marked(self, messages: list[dict[str, Any]], mark: str) -> list[dict[str, Any]]:
        return [
            {
                key: value
                if key in ("role", "id", "type")
                else self._marker.mark(value, mark, m["role"] == "assistant")
                for key, value in m.items()
            }
            for m in messages
        ]

    def _text(self, values: Mapping[str, Any], size: int) -> str:
        return whole(self._fill(values, Budget(_BASE_CHARS + 4 * size)))

    def _fill(self, values: Mapping[str, Any], budget: Budget) -> str:
        tokenizer = self._tokenizer
        names = {"bos_token": tokenizer.spelling(tokenizer.bos_id), "eos_token": tokenizer.spelling(tokenizer.eos_id)}
        return self._template.render({**names, "tools": None, "documents": None, **values}, budget)


def _check_values(values: Mapping[str, Any]) -> None:
    taken = sorted(name for name in values if name in _OURS or name.startswith("_"))
    if taken:
        raise RequestRefused(f"the template value {taken[0]!r} comes from the conversation and cannot be given")


def _open_ended(turns: list[Turn]) -> list[Turn]:
    """The turns with the end of the last assistant message marked."""
    last = turns[-1]
    if last.role != "assistant" or last.calls:
        raise RequestRefused(
            "only an assistant message without tool calls can be continued",
            "put the text to continue in the last message",
        )
    if any(_CUT in text for t in turns for text in (t.text, t.reasoning or "")):
        raise RequestRefused("a conversation with the character U+E000 cannot be continued", "remove that character")
    if last.reasoning and not last.text:
        return [*turns[:-1], Turn(last.role, "", last.reasoning + _CUT, name=last.name)]
    return [*turns[:-1], Turn(last.role, last.text + _CUT, last.reasoning, name=last.name)]


def _cut(text: str, found: list[Found]) -> tuple[str, list[Found]]:
    end = text.rfind(_CUT)
    if end < 0:
        raise RequestRefused("the chat template left out the message to continue", "a template that keeps it")
    return text[:end].replace(_CUT, ""), [f for f in found if f.start < end]


def _lost(turns: Sequence[Turn], text: str) -> list[Notice]:
    """A notice for each user or system message whose text is not in the prompt."""
    notices: list[Notice] = []
    at = 0
    for number, turn in enumerate(turns):
        core = turn.text.strip()
        if turn.role not in ("user", "system") or not core:
            continue
        # Messages come in order; only one that the template moved is looked for from the start again.
        place = text.find(core, at)
        if place < 0:
            place = text.find(core)
        if place < 0:
            notices.append(
                Notice("template-lost", f"the chat template left out the text of message {number} ({turn.role})")
            )
        at = max(at, place)
    return notices
