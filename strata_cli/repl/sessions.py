"""Saved chats: one JSON file each in the sessions directory, written whole or not at all."""

from __future__ import annotations

import base64
import json
import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strata_cli.repl.conversation import Conversation
from strata_cli.repl.parameters import check_saved
from strata_engine.chat import ROLES, Message, Part
from strata_engine.config import SamplingParams
from strata_engine.errors import IntegrityError, NotFound, UsageError

SCHEMA = "llmrun.session.v1"
LAST = "last"  # where a chat without a name is kept for --continue
_NAME = re.compile(r"[^\s/\\:*?\"<>|.\x00-\x1f][^/\\:*?\"<>|\x00-\x1f]{0,99}")


@dataclass(frozen=True)
class Entry:
    """One saved session, for /sessions."""

    name: str
    model: str
    messages: int
    saved_at: float


class Sessions:
    """The session files of one user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        """File of a name. Raises UsageError for names that are no plain file names."""
        if not _NAME.fullmatch(name):
            raise UsageError(f"not a session name: {name!r}", "letters, digits, blanks and - _ . (100 at most)")
        return self.folder / f"{name}.json"

    def exists(self, name: str) -> bool:
        """True if such a session was saved."""
        return bool(_NAME.fullmatch(name)) and self.path(name).is_file()

    def save(self, name: str, talk: Conversation) -> Path:
        """Write the conversation; an older one of this name is replaced in one step."""
        path = self.path(name)
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                json.dump(to_json(talk), file, ensure_ascii=False, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        return path

    def load(self, name: str, base: SamplingParams) -> Conversation:
        """Read a conversation; parameters the user had set are laid over `base`. Raises NotFound, IntegrityError."""
        path = self.path(name)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise NotFound(f"no saved session {name!r}", self._near(name)) from error
        except ValueError as error:
            raise IntegrityError(f"session {name!r} is damaged: {path}: {error}", "remove the file") from error
        return _from_json(document, base, path)

    def entries(self) -> list[Entry]:
        """All readable sessions, newest first."""
        found = [entry for path in self.folder.glob("*.json") if (entry := _entry(path)) is not None]
        return sorted(found, key=lambda e: -e.saved_at)

    def _near(self, name: str) -> str:
        import difflib

        near = difflib.get_close_matches(name, [e.name for e in self.entries()], 3)
        return "did you mean " + ", ".join(near) if near else "/sessions lists the saved ones"


def to_json(talk: Conversation) -> dict[str, Any]:
    """The whole conversation as JSON data (sessions and /export)."""
    return {
        "schema": SCHEMA,
        "model": talk.model,
        "saved_at": round(time.time(), 3),
        "system": talk.system,
        "thinking": talk.thinking,
        "parameters": {name: getattr(talk.params, name) for name in sorted(talk.changed)},
        "messages": [_message_json(m, i in talk.stopped) for i, m in enumerate(talk.messages)],
    }


def to_markdown(talk: Conversation) -> str:
    """The conversation for people."""
    parts = [f"# Chat with {talk.model}"]
    parts += [f"**system**\n\n{talk.system}"] if talk.system else []
    parts += [f"**{role}**\n\n{text}" for role, text in talk.shown()]
    return "\n\n".join(parts) + "\n"


def _message_json(message: Message, stopped: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.text}
    images = [part for part in message.parts if part.kind == "image"]
    if images:
        found["images"] = [{"type": i.media_type, "data": base64.b64encode(i.data).decode()} for i in images]
    if message.reasoning:
        found["reasoning"] = message.reasoning
    if stopped:
        found["stopped"] = True
    return found


def _from_json(document: Any, base: SamplingParams, path: Path) -> Conversation:
    try:
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']!r} is not {SCHEMA}")
        messages = [_message(m) for m in document["messages"]]
        values: dict[str, Any] = {k: check_saved(k, v) for k, v in document.get("parameters", {}).items()}
        return Conversation(
            model=str(document["model"]),
            params=replace(base, **values),
            system=str(document.get("system") or ""),
            thinking=document.get("thinking"),
            messages=messages,
            changed=set(values),
            stopped={i for i, m in enumerate(document["messages"]) if m.get("stopped")},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IntegrityError(f"session file is damaged: {path}: {error}", "remove the file") from error


def _message(value: dict[str, Any]) -> Message:
    if value["role"] not in ROLES or not isinstance(value["content"], str):
        raise ValueError("a message has no role or no text")
    images = [
        Part("image", data=base64.b64decode(i["data"]), media_type=str(i["type"])) for i in value.get("images", ())
    ]
    parts = (*images, Part("text", value["content"]))
    return Message(value["role"], parts, reasoning=value.get("reasoning"))


def _entry(path: Path) -> Entry | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        messages = document["messages"]
        return Entry(path.stem, str(document["model"]), len(messages), float(document.get("saved_at", 0)))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a damaged file is named when it is loaded, not in a list
