"""Where messages come from. Pure rules first: when a message goes on, what it means, which images it names.

`LineSource` is all that the loop knows; repl/terminal.py implements it on prompt_toolkit, tests from a list of lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from strata_engine.paths import expand

BLOCK = '"""'
PROMPT, MORE = ">>> ", "... "
_IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tiff")
# A path as people paste it: quoted, or bare with blanks escaped by a backslash.
_WORD = re.compile(r"\"([^\"\n]+)\"|'([^'\n]+)'|((?:\\.|[^\s\"'`\\])+)")
_CODE = re.compile(r"`[^`]*`")


class LineSource(Protocol):
    """Gives one whole message (or slash command) at a time."""

    def read(self) -> str:
        """The next message. Raises EOFError at the end of input and KeyboardInterrupt on Ctrl-C at an empty prompt."""
        ...

    def set_history(self, keep: bool) -> None:
        """Write messages to the history file from now on, or not."""
        ...


def is_open(text: str) -> bool:
    """True while a message is unfinished: an open block, or a backslash at the end of the last line."""
    if text.lstrip().startswith(BLOCK):
        return text.count(BLOCK) < 2
    return text.endswith("\\") and not text.endswith("\\\\")


def unwrap(text: str) -> str:
    """The message itself: without block marks, with continued lines joined."""
    stripped = text.strip()
    if stripped.startswith(BLOCK):
        body, _, rest = stripped[len(BLOCK) :].partition(BLOCK)
        return (body.strip("\n") + ("\n" + rest.strip() if rest.strip() else "")).strip()
    return re.sub(r"(?<!\\)\\\n", "\n", text).strip()


def image_paths(text: str) -> list[str]:
    """Existing image files that the message names, outside `code`."""
    return [path for match in _words(text) if (path := _image_of(_plain(match)))]


def without_images(text: str) -> str:
    """The message without the paths of the images it names: they are attached."""
    kept, at = [], 0
    for match in _words(text):
        if _image_of(_plain(match)):
            trail = match[0][len(match[0].rstrip(",;:!?)")) :]
            kept.append(text[at : match.start()] + trail)
            at = match.end()
    return re.sub(r"[ \t]{2,}", " ", "".join(kept) + text[at:]).strip()


def _words(text: str) -> Iterator[re.Match[str]]:
    return _WORD.finditer(_CODE.sub(lambda code: " " * len(code[0]), text))


def _plain(match: re.Match[str]) -> str:
    return match[1] or match[2] or re.sub(r"\\(.)", r"\1", match[3])


def _image_of(word: str) -> str:
    if not word.lower().rstrip(".,;:!?)").endswith(_IMAGES):
        return ""
    path = _as_path(word.rstrip(",;:!?)")) or _as_path(word.rstrip(".,;:!?)"))
    return str(path) if path else ""


def missing_images(text: str, bare_names: bool = False) -> list[str]:
    """Words outside `code` that spell the path of an image (a folder in it, or file:) where there is no such file.

    `bare_names`: names without a folder, too.
    """
    found: list[str] = []
    for match in _WORD.finditer(_CODE.sub(" ", text)):
        word = (match[1] or match[2] or re.sub(r"\\(.)", r"\1", match[3])).rstrip(",;:!?)")
        bare = word.rstrip(".")
        is_path = "/" in bare and ("://" not in bare or bare.startswith("file:"))
        is_name = bare_names and "/" not in bare and not bare.startswith((".", "*"))
        if (is_path or is_name) and bare.lower().endswith(_IMAGES) and not (_as_path(word) or _as_path(bare)):
            found.append(bare)
    return found


def _as_path(word: str) -> Path | None:
    if word.startswith("file:"):
        word = unquote(urlsplit(word).path)
    try:
        path = expand(word)
        return path if path.is_file() else None
    except (OSError, ValueError):  # too long, NUL
        return None


class PlainInput:
    """Lines from any iterable, joined into messages by the same rules as on a terminal.

    `ask` is given the prompt before each line is read: enough for terminals that know no cursor movement.
    """

    def __init__(self, lines: Iterable[str], ask: Callable[[str], object] = lambda prompt: None) -> None:
        self._lines: Iterator[str] = iter(lines)
        self._ask = ask

    def read(self) -> str:
        """The next message; EOFError when the lines are used up inside or outside a message."""
        text = self._next(PROMPT)
        while is_open(text):
            text += "\n" + self._next(MORE)
        return text

    def set_history(self, keep: bool) -> None:
        """Nothing: there is no history."""

    def _next(self, prompt: str) -> str:
        self._ask(prompt)
        line = next(self._lines, None)
        if line is None:
            raise EOFError
        return line.rstrip("\n")
