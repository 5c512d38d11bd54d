"""Slash commands: a table of names, usage and function. An unknown one is never sent to the model."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from strata_cli.columns import align
from strata_cli.repl import show
from strata_cli.repl.chat import Chat
from strata_cli.repl.parameters import read_parameter
from strata_cli.repl.sessions import to_json, to_markdown
from strata_engine.errors import NotFound, UsageError
from strata_engine.paths import expand


@dataclass(frozen=True)
class Slash:
    """One command. `run(chat, rest)`: rest is the text behind the name, stripped."""

    names: tuple[str, ...]
    usage: str
    summary: str
    run: Callable[[Chat, str], None]


def dispatch(chat: Chat, line: str) -> None:
    """Run a line that starts with one slash. Raises UsageError for unknown names, and what the command raises."""
    name, _, rest = line.strip().partition(" ")
    if "\n" in name:
        name, _, rest = line.strip().partition("\n")
    for command in COMMANDS:
        if name in command.names:
            command.run(chat, rest.strip())
            return
    near = difflib.get_close_matches(name, all_names(), 3)
    hint = (
        "did you mean " + ", ".join(near) + "? " if near else "/help lists them; "
    ) + "// at the start sends the text"
    raise UsageError(f"no such command: {name} (nothing was sent)", hint)


def all_names() -> list[str]:
    """Every name, for Tab."""
    return [name for command in COMMANDS for name in command.names]


def _help(chat: Chat, rest: str) -> None:
    for text in align((), [(f"{', '.join(c.names)} {c.usage}".strip(), c.summary) for c in COMMANDS]):
        chat.output.line(text)
    for text in _KEYS:
        chat.output.line(text)


_KEYS = (
    "",
    'Alt-Enter, Ctrl-J or \\ at the line end: new line.  """ ... """: a block.  Ctrl-R: search history.',
    "Ctrl-C: stop the answer, or clear the line; twice: leave.  Ctrl-D: leave.  //x sends /x.",
)


def _leave(chat: Chat, rest: str) -> None:
    chat.done = True


def _set(chat: Chat, rest: str) -> None:
    what, _, value = rest.partition(" ")
    value = value.strip()
    action = _SETTINGS.get(what)
    if not what:
        raise UsageError("/set needs to know what", "/set " + ", ".join(_SETTINGS))
    if action is None:
        near = difflib.get_close_matches(what, _SETTINGS, 3)
        raise UsageError(f"/set {what}: no such setting", "/set " + ", ".join(near or _SETTINGS))
    action(chat, value)


def _set_parameter(chat: Chat, value: str) -> None:
    name, _, text = value.partition(" ")
    if not text.strip():
        raise UsageError("/set parameter needs a name and a value", "/set parameter temperature 0.7")
    name, field, found = read_parameter(name, text.strip())
    chat.talk.set(**{field: found})
    chat.output.note(f"{name} = {text.strip()}")


def _set_think(chat: Chat, value: str) -> None:
    level = value.lower() or "on"
    if level not in ("on", "off", "none", "low", "medium", "high"):
        raise UsageError(f"/set think {value}: not on, off, low, medium or high")
    chat.talk.thinking = {"on": True, "off": False, "none": False}.get(level, level)
    chat.output.note("thinking off" if chat.talk.thinking is False else f"thinking {level}")


def _set_spec(chat: Chat, value: str) -> None:
    """Drafts on or off for what follows; which drafters there are was decided when the model was loaded."""
    drafters = chat.service.report(chat.model.name).speculation.get("drafters", {})
    wanted = value.lower() or "auto"
    if wanted in ("none", "off"):
        chat.talk.params = replace(chat.talk.params, speculate=False)
        chat.output.note("answers come without drafts")
    elif not drafters:
        raise UsageError(f"/set spec {wanted}: the model was loaded without drafters", "llmrun chat --spec auto")
    elif wanted in ("auto", "on", *drafters):
        chat.talk.params = replace(chat.talk.params, speculate=True)
        chat.output.note(f"drafts by {', '.join(drafters)}")
    else:
        raise UsageError(f"/set spec {wanted}: not loaded", f"none, auto, {', '.join(drafters)}")


def _set_stats(chat: Chat, wanted: bool) -> None:
    chat.stats = wanted
    chat.output.note("statistics after each answer" if wanted else "no statistics")


def _set_history(chat: Chat, wanted: bool) -> None:
    chat.keep_history(wanted)
    chat.output.note("messages go to the history file" if wanted else "messages are not written to the history file")


def _system(chat: Chat, rest: str) -> None:
    if rest:
        chat.talk.system = rest
        chat.output.note("system text set")
    else:
        chat.output.line(chat.talk.system or "(no system text)")


_SETTINGS: dict[str, Callable[[Chat, str], None]] = {
    "parameter": _set_parameter,
    "system": _system,
    "think": _set_think,
    "spec": _set_spec,
    "nothink": lambda chat, value: _set_think(chat, "off"),
    "verbose": lambda chat, value: _set_stats(chat, True),
    "quiet": lambda chat, value: _set_stats(chat, False),
    "history": lambda chat, value: _set_history(chat, True),
    "nohistory": lambda chat, value: _set_history(chat, False),
}


def _load(chat: Chat, rest: str) -> None:
    if not rest:
        raise UsageError("/load needs a session or a model", "/sessions and /list show what there is")
    if not chat.sessions.exists(rest):
        chat.switch(rest)
        chat.output.note(f"model: {chat.model.name}; the conversation goes on")
        return
    loaded = chat.sessions.load(rest, chat.talk.params)
    if loaded.model != chat.talk.model:
        chat.switch(loaded.model)
    chat.talk, chat.last = loaded, None
    chat.output.note(f"session {rest}: {len(loaded.messages)} messages, model {loaded.model}")


def _save(chat: Chat, rest: str) -> None:
    name = rest or chat.session
    if not name:
        raise UsageError("/save needs a name")
    chat.sessions.save(name, chat.talk)
    chat.output.note(f"saved as {name}; /load {name} or chat --session {name} brings it back")


def _list(chat: Chat, rest: str) -> None:
    names = list(chat.list_models())
    for name in names:
        chat.output.line(name)
    if not names:
        chat.output.note("no models on this machine yet")


def _clear(chat: Chat, rest: str) -> None:
    chat.talk.messages.clear()
    chat.talk.stopped.clear()
    chat.pending.clear()
    chat.images.clear()
    chat.last = None
    chat.output.note("conversation cleared" + ("; the system text stays" if chat.talk.system else ""))


def _undo(chat: Chat, rest: str) -> None:
    if rest and not (rest.isdecimal() and int(rest) > 0):
        raise UsageError(f"/undo {rest}: not a count of exchanges", "/undo 2")
    count = chat.talk.undo(int(rest or 1))
    chat.output.note(f"{count} exchange{'s' if count != 1 else ''} removed")


def _file(chat: Chat, rest: str) -> None:
    from strata_cli.prompt import fenced_file

    if not rest:
        raise UsageError("/file needs a path")
    block = fenced_file(rest.strip("\"'"))
    chat.pending.append(block)
    chat.output.note(f"{Path(rest).name}: {len(block)} characters go in front of your next message")


def _image(chat: Chat, rest: str) -> None:
    if not rest:
        raise UsageError("/image needs a path")
    chat.attach(rest.strip("\"'"))


def _export(chat: Chat, rest: str) -> None:
    import json

    if not rest:
        raise UsageError("/export needs a file name", "/export chat.md or /export chat.json")
    path = expand(rest)
    is_json = path.suffix.lower() == ".json"
    text = json.dumps(to_json(chat.talk), ensure_ascii=False, indent=1) + "\n" if is_json else to_markdown(chat.talk)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{path} exists", "another name") from error
    except FileNotFoundError as error:
        raise NotFound(f"no such directory: {path.parent}") from error
    chat.output.note(f"wrote {path}")


COMMANDS: tuple[Slash, ...] = (
    Slash(("/help", "/?"), "", "this list", _help),
    Slash(("/bye", "/exit", "/quit"), "", "leave", _leave),
    Slash(
        ("/set",),
        "WHAT [VALUE]",
        "parameter NAME VALUE, system, think, nothink, spec, verbose, quiet, history, nohistory",
        _set,
    ),
    Slash(("/show",), "WHAT", "info, params, system, template, messages, stats, context", show.show),
    Slash(("/system",), "[TEXT]", "show or set the system text", _system),
    Slash(("/save",), "NAME", "save the conversation", _save),
    Slash(("/load",), "NAME", "load a saved conversation, or another model", _load),
    Slash(("/sessions",), "", "list saved conversations", show.sessions),
    Slash(("/list",), "", "list models on this machine", _list),
    Slash(("/clear",), "", "forget the conversation", _clear),
    Slash(("/undo",), "[N]", "take back the last exchange, or N", _undo),
    Slash(("/retry", "/regen"), "", "answer the last question again", lambda chat, rest: chat.retry()),
    Slash(("/file",), "PATH", "put a text file in front of the next message", _file),
    Slash(("/image",), "PATH", "show an image with the next message", _image),
    Slash(("/export",), "FILE", "write the conversation as .md or .json", _export),
    Slash(("/stats",), "", "numbers of the last answer", lambda chat, rest: show.show(chat, "stats")),
    Slash(("/tokens",), "", "tokens used and left", lambda chat, rest: show.show(chat, "context")),
)
