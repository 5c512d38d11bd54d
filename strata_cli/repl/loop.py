"""Read, send, print, until the user leaves. Every error of the tree is shown and the chat goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

from strata_cli.repl import slash
from strata_cli.repl.chat import Chat
from strata_cli.repl.input import LineSource, unwrap
from strata_engine.errors import LlmrunError

_INTERRUPTED = 130
_TWICE_S = 2.0


def run_loop(chat: Chat, source: LineSource, first: str = "", clock: Callable[[], float] = time.monotonic) -> int:
    """Chat until /bye or end of input (0), or two interrupts at an empty prompt within 2 s (130)."""
    chat.keep_history = source.set_history
    if first:
        _guarded(chat, lambda: chat.ask(first))
    interrupted_at: float | None = None
    while not chat.done:
        try:
            text = source.read()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            now = clock()
            if interrupted_at is not None and now - interrupted_at <= _TWICE_S:
                return _INTERRUPTED
            interrupted_at = now
            chat.output.note("Ctrl-C again or Ctrl-D leaves; /help lists the commands")
            continue
        interrupted_at = None
        handle(chat, text)
    return 0


def handle(chat: Chat, text: str) -> None:
    """One message or slash command."""
    if not text.strip():
        return
    if text.startswith("//"):
        message = unwrap(text)[1:]
    elif text.startswith("/"):
        _guarded(chat, lambda: slash.dispatch(chat, text))
        return
    else:
        message = unwrap(text)
    if message:
        _guarded(chat, lambda: chat.ask(message))


def _guarded(chat: Chat, action: Callable[[], object]) -> None:
    try:
        action()
    except LlmrunError as error:
        chat.output.error(error.message, error.hint)
    except BrokenPipeError:
        raise
    except OSError as error:
        chat.output.error(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))
    except KeyboardInterrupt:
        chat.output.note("stopped")
