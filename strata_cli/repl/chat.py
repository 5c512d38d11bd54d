"""Chat: one conversation with one model. Knows no terminal; the loop and the slash commands drive it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from strata_cli.output import Output
from strata_cli.pictures import can_see, read_image, require_sight
from strata_cli.repl.conversation import STOPPED, Conversation
from strata_cli.repl.input import image_paths, missing_images, without_images
from strata_cli.repl.render import Answer, AnswerView, collect, stats_lines
from strata_cli.repl.sessions import Sessions
from strata_engine.chat import ChatRequest, Part
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
    images: list[Part] = field(default_factory=list)  # of /image and --image, sent with the next message
    last: Answer | None = None
    keep_history: Callable[[bool], None] = lambda keep: None
    answering: Callable[[], AbstractContextManager[None]] = nullcontext
    done: bool = False

    def ask(self, text: str) -> Answer | None:
        """Send a message, print the answer, keep both. None when it was refused; the conversation is then unchanged."""
        text, images = self._attached(text)
        question = "\n\n".join([*self.pending, text])
        answer = self._run(self.talk.request(question, images))
        self.pending.clear()
        self.images.clear()
        if answer.stopped and not answer.text:
            self.output.note("stopped before the first word; nothing was kept")
            return answer
        self.talk.add(question, answer.text, answer.reasoning, answer.stopped, images)
        self._after(answer)
        return answer

    def attach(self, name: str) -> None:
        """Put an image in front of the next message (/image). Raises NotFound, UsageError, RequestRefused."""
        require_sight(self.model, [name])
        self.images.append(read_image(name))
        self.output.note(f"[image {len(self.images)}: {Path(name).name}] goes with the next message")

    def _attached(self, text: str) -> tuple[str, list[Part]]:
        """The message without the image paths in it, and all images to send. Raises NotFound for a missing one."""
        missing, paths = missing_images(text, bare_names=can_see(self.model)), image_paths(text)
        if missing:
            raise NotFound(f"no such image: {', '.join(missing)} (nothing was sent)", "check the path; " + _AS_TEXT)
        if paths and not can_see(self.model):
            names = ", ".join(Path(p).name for p in paths)
            raise RequestRefused(f"this model cannot see images: {names} (nothing was sent)", _AS_TEXT)
        images = [*self.images, *map(read_image, paths)]
        for number, path in enumerate(paths, len(self.images) + 1):
            self.output.note(f"[image {number}: {Path(path).name}]")
        return (without_images(text) if paths else text), images

    def retry(self) -> None:
        """Answer the last question again; the old answer comes back when there is no new one."""
        question, images = self.talk.last_question(), self.talk.last_images()
        if question is None:
            raise RequestRefused("there is no question to answer again", "ask something first")
        old = list(self.talk.messages), set(self.talk.stopped)
        pending, self.pending = self.pending, []
        self.talk.undo()
        count = len(self.talk.messages)
        try:
            self.ask_again(question, images)
        finally:
            self.pending = pending
            if len(self.talk.messages) == count:
                self.talk.messages, self.talk.stopped = old

    def ask_again(self, question: str, images: Sequence[Part] = ()) -> None:
        """Send a question that was accepted before."""
        answer = self._run(self.talk.request(question, images))
        if answer.text or not answer.stopped:
            self.talk.add(question, answer.text, answer.reasoning, answer.stopped, images)
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
            for line in stats_lines(answer, self.load_s):
                self.output.note(line)
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
