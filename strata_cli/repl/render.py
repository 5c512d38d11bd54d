"""Events of one answer -> terminal and record. Answer text goes to stdout as it comes, thinking to stderr, dimmed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from strata_cli.output import Output, clean
from strata_cli.speculation import drafts_line
from strata_engine.events import Event, Failed, Finish, Notice, Reading, Reasoning, Started, Text, Token
from strata_engine.runtime.api import Stream

_NEWS = ("spec_verify",)  # notices that tell of no loss
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_WIPE = "\r\x1b[2K"


@dataclass
class Answer:
    """What came of one stream. `stopped`: the user ended it; then `finish` is None or says cancelled."""

    text: str = ""
    reasoning: str = ""
    started: Started | None = None
    finish: Finish | None = None
    notices: list[Notice] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)  # those of the visible text
    stopped: bool = False

    def take(self, event: Event) -> None:
        """Add one event."""
        if isinstance(event, Text):
            self.text += event.text
            self.tokens += event.tokens
        elif isinstance(event, Reasoning):
            self.reasoning += event.text
        elif isinstance(event, Started):
            self.started = event
        elif isinstance(event, Finish):
            self.finish = event
        elif isinstance(event, Notice):
            self.notices.append(event)


def collect(stream: Stream, show: Callable[[Event], None]) -> Answer:
    """Run a stream to its end, showing every event. Ctrl-C ends it and keeps what came. Raises the stream's error."""
    answer = Answer()
    try:
        for event in stream:
            answer.take(event)
            show(event)
            if isinstance(event, Failed):
                raise event.error
    except KeyboardInterrupt:
        answer.stopped = True
    finally:
        stream.close()
    return answer


class AnswerView:
    """Prints one answer. `write` takes answer text (default: stdout); `thinking` False hides the thinking."""

    def __init__(self, output: Output, thinking: bool = True, write: Callable[[str], None] | None = None) -> None:
        self._output = output
        self._thinking = thinking and not output.quiet
        self._write = write or output.write
        self._last = "\n"
        self._in_thinking = False
        self._held: list[Notice] = []  # those that came in the middle of a line
        self._reading = False  # a line about the prompt stands on the terminal

    def show(self, event: Event) -> None:
        """Print one event."""
        if isinstance(event, Reading):
            self._show_reading(event)
            return
        self._end_reading()
        if isinstance(event, Reasoning):
            self._show_thinking(event.text)
        elif isinstance(event, Text) and event.text:
            self._end_thinking()
            self._last = event.text[-1]  # first: Ctrl-C may come right after the write
            self._write(event.text)
        elif isinstance(event, Notice):
            self._end_thinking()
            if self._last == "\n":
                self._say(event)
            else:
                self._held.append(event)

    def end(self, mark: str = "") -> None:
        """Close the answer: the mark, then a newline unless the text ended with one."""
        self._end_reading()
        self._end_thinking()
        if mark:
            self._write(mark.lstrip() if self._last == "\n" else mark)
            self._last = mark[-1]
        if self._last != "\n":
            self._write("\n")
            self._last = "\n"
        for notice in self._held:
            self._say(notice)
        self._held.clear()

    def _say(self, notice: Notice) -> None:
        say = self._output.note if notice.code in _NEWS else self._output.warn
        say(notice.message)

    def _show_reading(self, event: Reading) -> None:
        err = self._output.stderr
        if self._output.quiet or not err.isatty():
            return
        self._reading = True
        err.write(f"{_WIPE}reading prompt {event.done_tokens}/{event.prompt_tokens}")
        err.flush()

    def _end_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._output.stderr.write(_WIPE)
            self._output.stderr.flush()

    def _show_thinking(self, text: str) -> None:
        if not self._thinking:
            return
        err = self._output.stderr
        if not self._in_thinking:
            self._in_thinking = True
            err.write(_DIM if self._output.colour else "<think>\n")
        err.write(clean(text))
        err.flush()

    def _end_thinking(self) -> None:
        if self._in_thinking:
            self._in_thinking = False
            self._output.stderr.write((_PLAIN if self._output.colour else "\n</think>") + "\n\n")
            self._output.stderr.flush()


def stats_lines(answer: Answer, load_s: float | None = None) -> list[str]:
    """Prompt and generation with their speeds, time to first token, load time; a second line where drafts were tried.

    Unknown parts are left out.
    """
    finish = answer.finish
    if finish is None:
        return ["stopped before the end: no statistics"]
    usage, times = finish.usage, finish.timings
    fresh = usage.prompt_tokens - usage.cached_tokens
    cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
    # The first token comes out of the prompt's own forward pass, so the decode clock covers the others only.
    parts = [
        f"prompt {usage.prompt_tokens} tokens{cached}{_rate(fresh, times.prompt_s)}",
        f"generated {usage.completion_tokens} tokens{_rate(usage.completion_tokens - 1, times.decode_s)}",
        f"first token {times.first_token_s:.2f} s",
    ]
    if load_s is not None:
        parts.append(f"load {load_s:.2f} s")
    lines = [" | ".join(parts)]
    return lines if finish.drafts is None else [*lines, drafts_line(finish)]


def _rate(tokens: int, seconds: float) -> str:
    return f", {tokens / seconds:.1f} tok/s" if tokens > 0 and seconds > 0 else ""
