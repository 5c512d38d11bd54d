"""The /show and /sessions commands: what the chat knows, as plain lines on stdout."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable

from strata_cli.repl import parameters
from strata_cli.repl.chat import Chat
from strata_cli.repl.render import stats_lines
from strata_cli.speculation import drafter_lines
from strata_engine.errors import UsageError
from strata_engine.units import format_bytes


def show(chat: Chat, what: str) -> None:
    """Print one part by name. Raises UsageError for others."""
    part = _PARTS.get(what or "info")
    if part is None:
        near = difflib.get_close_matches(what, _PARTS, 3)
        raise UsageError(f"/show {what}: no such part", "/show " + ", ".join(near or _PARTS))
    part(chat)


def sessions(chat: Chat, rest: str) -> None:
    """List the saved conversations."""
    rows = [
        (e.name, e.model, str(e.messages), time.strftime("%Y-%m-%d %H:%M", time.localtime(e.saved_at)))
        for e in chat.sessions.entries()
    ]
    if rows:
        chat.output.table(("NAME", "MODEL", "MESSAGES", "SAVED"), rows, right=(2,))
    else:
        chat.output.note("no saved conversations; /save NAME makes one")


def _info(chat: Chat) -> None:
    m = chat.model
    rows = [
        ("model", m.name),
        ("source", m.root),
        ("architecture", m.architecture),
        ("parameters", f"{m.parameters / 1e6:.4g} M"),
        ("quantisation", m.quant),
        ("size", format_bytes(m.size_bytes)),
        ("context", f"{m.context_tokens} tokens (trained for {m.train_context_tokens})"),
        ("vocabulary", str(m.vocab_size)),
        ("device", m.device),
        ("can do", ", ".join(m.capabilities) or "text"),
    ]
    chat.output.table((), rows)
    for line in drafter_lines(chat.service.report(m.name).speculation):
        chat.output.line(line)


def _params(chat: Chat) -> None:
    chat.output.table(("NAME", "VALUE", "FROM"), parameters.rows(chat.talk.params, chat.talk.changed, chat.origins))
    chat.output.line(f"thinking: {'the model decides' if chat.talk.thinking is None else chat.talk.thinking}")


def _system(chat: Chat) -> None:
    chat.output.line(chat.talk.system or "(no system text)")


def _template(chat: Chat) -> None:
    chat.output.line(chat.service.text(chat.model.name).template_source or "(no chat template)")


def _messages(chat: Chat) -> None:
    for role, text in chat.talk.shown():
        chat.output.line(f"{role}: {text}")
    if not chat.talk.messages:
        chat.output.line("(no messages)")


def _stats(chat: Chat) -> None:
    for line in stats_lines(chat.last, chat.load_s) if chat.last else ["(no answer yet)"]:
        chat.output.line(line)


def _context(chat: Chat) -> None:
    used, total = chat.used_tokens(), chat.model.context_tokens
    share = f" ({100 * used / total:.0f} %)" if total else ""
    chat.output.line(f"{used} of {total} tokens used{share}, {max(0, total - used)} left")


_PARTS: dict[str, Callable[[Chat], None]] = {
    "info": _info,
    "params": _params,
    "parameters": _params,
    "system": _system,
    "template": _template,
    "messages": _messages,
    "stats": _stats,
    "context": _context,
}
