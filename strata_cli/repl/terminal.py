"""The line editor: prompt_toolkit with our keys, history file and completion. Imported only on a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle

from strata_cli.repl.input import MORE, PROMPT, is_open

Names = Callable[[], Iterable[str]]


class TerminalInput:
    """Reads messages at a prompt; with `keep` they go to `history_file`."""

    def __init__(self, commands: Iterable[str], arguments: Mapping[str, Names], history_file: Path, keep: bool) -> None:
        self._session: PromptSession[str] = PromptSession(
            message=PROMPT,
            multiline=True,
            prompt_continuation=MORE,
            key_bindings=_keys(),
            completer=SlashCompleter(sorted(commands), arguments),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            reserve_space_for_menu=0,
            output=_output(),
            history=InMemoryHistory(),
            enable_history_search=False,
        )
        self._file = history_file
        self.set_history(keep)

    def read(self) -> str:
        """The next message as typed."""
        return self._session.prompt()

    def set_history(self, keep: bool) -> None:
        """Keep messages in the history file, or in memory only."""
        history = _open_history(self._file) if keep else InMemoryHistory()
        self._session.history = history
        self._session.default_buffer.history = history
        self._session.default_buffer.reset()


def _output() -> Output:
    output = create_output(always_prefer_tty=True)  # the prompt goes to stderr when stdout is a file
    if isinstance(output, Vt100_Output):
        # No question about the cursor's place: terminals that do not answer get a warning, slow ones print the answer.
        output.enable_cpr = False
    return output


def _open_history(path: Path) -> History:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Created with a private mode first: prompt_toolkit would take the umask's.
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    except OSError:  # a read-only home must not keep anybody from chatting
        return InMemoryHistory()
    return FileHistory(str(path))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text) and buffer.document.is_cursor_at_the_end:
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


class SlashCompleter(Completer):
    """Slash commands at the start of a message; behind a command its own names, or paths; paths in any message."""

    def __init__(self, commands: list[str], arguments: Mapping[str, Names]) -> None:
        self._commands = commands
        self._arguments = arguments
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Candidates for the word before the cursor."""
        text = document.text_before_cursor
        if text.startswith("/") and " " not in text and not text.startswith("//"):
            return [Completion(c, -len(text)) for c in self._commands if c.startswith(text)]
        command, _, rest = text.partition(" ")
        if command in self._arguments:
            word = rest.lstrip()
            return [Completion(n, -len(word)) for n in sorted(self._arguments[command]()) if n.startswith(word)]
        word = rest.lstrip() if command in ("/file", "/export") else text.rpartition(" ")[2]
        if word.startswith(("./", "../", "~", "/")) or command in ("/file", "/export"):
            return self._paths.get_completions(Document(word), complete_event)
        return []
