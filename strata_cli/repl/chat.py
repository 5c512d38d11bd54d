"""Chat: one conversation with one model. Knows no terminal; the loop and the slash commands drive it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from strata_cli.output import Output
from strata_cli.repl.conversation import STOPPED, Conversation
from strata_cli.repl.input import image_paths, missing_images
from strata_cli.repl.render import Answer, AnswerView, collect, stats_line
from strata_cli.repl.sessions import Sessions
from strata_engine.chat import ChatRequest
from strata_engine.errors import ContextExceeded, LlmrunError, NotFound, RequestRefused
from strata_engine.runtime.api import LoadedModel, Service

_NEARLY_FULL = 0.8
_AS_TEXT = "put the name in `backticks` to send it as plain text"


@dataclass
class Chat:
    """State of a running chat.

    open_model   loads another model by reference (/load)
    list_models  names of the models on this machine (/list)
    origins      where each sampling setting came from, by its name
    session      name that every exchange is saved under; None = not saved
    answering    entered while an answer comes (a terminal hides the keys pressed meanwhile)
    """

    service: Service
    model: LoadedModel
    talk: Conversation
    output: Output
    sessions: Sessions
    open_model: Callable[[str], tuple[Service, LoadedModel]]
    list_models: Callable[[], Iterable[str]]
    origins: Mapping[str, str] = field(default_factory=dict)
    session: str | None = None
    stats: bool = False
    hide_thinking: bool = False
    load_s: float | None = None
    pending: list[str] = field(default_factory=list)  # text of /file, sent in front of the next message
    last: Answer | None = None
    keep_history: Callable[[bool], None] = lambda keep: None
    answering: Callable[[], AbstractContextManager[None]] = nullcontext
    done: bool = False

    def ask(self, text: str) -> Answer | None:
        """Send a message, print the answer, keep both. None when it was refused; the conversation is then unchanged."""
        missing = missing_images(text)
        if missing:
            raise NotFound(f"no such image: {', '.join(missing)} (nothing was sent)", "check the path; " + _AS_TEXT)
        images = image_paths(text)
        if images:
            raise RequestRefused(
                f"this engine cannot see images: {', '.join(Path(p).name for p in images)} (nothing was sent)",
                _AS_TEXT,
            )
        question = "\n\n".join([*self.pending, text])
        answer = self._run(self.talk.request(question))
        self.pending.clear()
        if answer.stopped and not answer.text:
            self.output.note("stopped before the first word; nothing was kept")
            return answer
        self.talk.add(question, answer.text, answer.reasoning, answer.stopped)
        self._after(answer)
        return answer

    def retry(self) -> None:
        """Answer the last question again; the old answer comes back when there is no new one."""
        question = self.talk.last_question()
        if question is None:
            raise RequestRefused("there is no question to answer again", "ask something first")
        old = list(self.talk.messages), set(self.talk.stopped)
        pending, self.pending = self.pending, []
        self.talk.undo()
        count = len(self.talk.messages)
        try:
            self.ask_again(question)
        finally:
            self.pending = pending
            if len(self.talk.messages) == count:
                self.talk.messages, self.talk.stopped = old

    def ask_again(self, question: str) -> None:
        """Send a question that was accepted before."""
        answer = self._run(self.talk.request(question))
        if answer.text or not answer.stopped:
            self.talk.add(question, answer.text, answer.reasoning, answer.stopped)
            self._after(answer)

    def used_tokens(self) -> int:
        """Tokens of the conversation as the model would see it now."""
        try:
            chat = self.service.text(self.model.name).chat
            if chat is not None and (self.talk.messages or self.talk.system):
                return len(chat.render(ChatRequest(self.talk.request().messages)).ids)
        except LlmrunError:
            pass  # a remote server gives no text rules: the last answer's own count stands in
        usage = self.last.finish.usage if self.last and self.last.finish and self.talk.messages else None
        return usage.prompt_tokens + usage.completion_tokens if usage else 0

    def switch(self, reference: str) -> None:
        """Change the model; the conversation stays."""
        self.service, self.model = self.open_model(reference)
        self.talk.model = reference
        self.load_s = None

    def _run(self, request: ChatRequest) -> Answer:
        view = AnswerView(self.output, not self.hide_thinking)
        try:
            with self.answering():
                answer = collect(self.service.stream(self.model.name, request, self.talk.params), view.show)
        except ContextExceeded as error:
            view.end()
            raise ContextExceeded(
                error.message, "/undo, /clear, or start with a larger --ctx", error.details
            ) from error
        except LlmrunError:
            view.end()
            raise
        view.end(STOPPED if answer.stopped else "")
        return answer

    def _after(self, answer: Answer) -> None:
        self.last = answer
        finish = answer.finish
        if finish is not None and finish.reason == "length":
            self.output.warn(
                f"the answer was cut at {finish.usage.completion_tokens} tokens (max_tokens or the context)"
            )
        if self.stats:
            self.output.note(stats_line(answer, self.load_s))
            self.load_s = None  # the load belongs to the first answer only
        self._warn_when_nearly_full(answer)
        if self.session is not None:
            self.sessions.save(self.session, self.talk)

    def _warn_when_nearly_full(self, answer: Answer) -> None:
        total = self.model.context_tokens
        usage = answer.finish.usage if answer.finish else None
        used = usage.prompt_tokens + usage.completion_tokens if usage else 0
        if total and used > _NEARLY_FULL * total:
            share = f"{100 * used / total:.0f} %"
            self.output.warn(
                f"context {share} full ({used} of {total} tokens); /undo or /clear makes room, /save keeps it"
            )
