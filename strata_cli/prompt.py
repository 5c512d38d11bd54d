"""What the user said on the command line: model or prompt, piped text, attached files, system text. No engine."""

from __future__ import annotations

import difflib
import os
import select
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from strata_engine.errors import NotFound, RequestRefused, UsageError
from strata_engine.paths import expand

_WAIT_S = 1.0
_LANGUAGES = {".py": "python", ".js": "javascript", ".ts": "typescript", ".sh": "sh", ".c": "c", ".h": "c",
              ".cpp": "cpp", ".rs": "rust", ".go": "go", ".java": "java", ".json": "json", ".yaml": "yaml",
              ".yml": "yaml", ".toml": "toml", ".md": "markdown", ".html": "html", ".css": "css"}  # fmt: skip
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tiff")


@dataclass(frozen=True)
class Spoken:
    """`model` "" = the catalog's default. `words` None = no prompt was given."""

    model: str
    words: str | None


def looks_like_model(word: str) -> bool:
    """A file, a directory path or a hub form, whether or not it exists; free text never does."""
    if not word or word.startswith("-"):
        return False
    if _exists(word) and (word.endswith(".gguf") or os.sep in word):
        return True
    if any(c.isspace() for c in word):
        return False
    prefixes = ("hf.co/", "hf://", "modelscope:", "ms://", "https://", "http://", "file:", "./", "../", "~/")
    return word.lower().endswith((".gguf", ".safetensors")) or word.startswith(prefixes)


def split_model(words: Sequence[str], known: Callable[[str], bool], names: Callable[[], Iterable[str]]) -> Spoken:
    """Tell model from prompt.

    One word: a model when it is known or has a model's form, else the prompt. Several: the first is the model, unless
    it starts with `-` (everything came behind `--`). Raises NotFound for one bare word that is nearly a model's name.
    """
    if not words:
        return Spoken("", None)
    first = words[0]
    if known(first) or looks_like_model(first):
        return Spoken(first, " ".join(words[1:]) if len(words) > 1 else None)
    if len(words) > 1 and not first.startswith("-") and not any(c.isspace() for c in first):
        return Spoken(first, " ".join(words[1:]))
    if len(words) == 1 and first.isascii() and not any(c.isspace() for c in first):
        near = difflib.get_close_matches(first, list(names()), 5, cutoff=0.8)
        if near:
            raise NotFound(f"no model named {first!r}", "did you mean " + ", ".join(near) + "?", {"near": near})
    return Spoken("", " ".join(words))


def read_piped(stdin: TextIO | None, say: Callable[[str], None], only: bool = False) -> str:
    """Text piped in, "" from a terminal. `only`: stdin was asked for by name, so a terminal is read too.

    After a second without input `say` gets a line, so that an idle inherited pipe does not look like a hang.
    """
    if stdin is None or stdin.closed or (stdin.isatty() and not only):
        return ""
    if not stdin.isatty() and _is_idle(stdin):
        say("waiting for standard input to end (</dev/null skips it)")
    try:
        data = stdin.buffer.read() if hasattr(stdin, "buffer") else stdin.read().encode("utf-8", "replace")
    except OSError:
        return ""
    if b"\0" in data[:65536]:
        raise UsageError("standard input is not text", "pipe text, for example from a converter")
    return data.decode("utf-8-sig", "replace")


def _is_idle(stdin: TextIO) -> bool:
    try:
        kind = os.fstat(stdin.fileno()).st_mode
        if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
            return False
        return not select.select([stdin], [], [], _WAIT_S)[0]
    except (OSError, ValueError):  # no descriptor behind it, or a platform whose select takes sockets only
        return False


def system_text(value: str | None) -> str:
    """`--system TEXT` or `--system @FILE`."""
    if not value:
        return ""
    return read_text(value[1:]).strip() if value.startswith("@") and len(value) > 1 else value


def fenced_file(name: str) -> str:
    """A text file as a fenced block with its name; the fence is longer than any inside."""
    text = read_text(name)
    fence = "```"
    while fence in text:
        fence += "`"
    path = Path(name)
    return f"{path.name}:\n{fence}{_LANGUAGES.get(path.suffix.lower(), '')}\n{text.rstrip()}\n{fence}"


def read_text(name: str) -> str:
    """A UTF-8 file. Raises NotFound, UsageError (not text, a directory), RequestRefused (an image)."""
    path = expand(name)
    if path.suffix.lower() in IMAGES:
        raise RequestRefused(f"{name} is an image, not text", "--image FILE or /image FILE shows it to the model")
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {name}") from error
    except IsADirectoryError as error:
        raise UsageError(f"{name} is a directory", "name the files one by one") from error
    if b"\0" in data[:65536]:
        raise UsageError(f"{name} is not a text file", "convert it to text first")
    return data.decode("utf-8-sig", "replace")


def path_of(text: str) -> Path:
    """A path as typed, with ~ expanded."""
    return expand(text)


def join_prompt(piped: str, files: Sequence[str], words: str | None) -> str:
    """Piped text, then file blocks, then the words. Raises UsageError when nothing but blanks is left."""
    parts = [p for p in (piped.strip("\n"), *map(fenced_file, files), words or "") if p.strip()]
    if not parts:
        raise UsageError("the prompt is empty", 'llmrun run "Why is the sky blue?"')
    return "\n\n".join(parts)


def _exists(word: str) -> bool:
    try:
        return expand(word).exists()
    except (OSError, ValueError):  # too long for a file name, NUL
        return False


def stdin_is_terminal() -> bool:
    """A person sits there."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
