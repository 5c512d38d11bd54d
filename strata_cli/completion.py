"""Candidates for one press of Tab: `llmrun __complete SHELL -- WORDS`, the last word being the one under the cursor.

Reads two small JSON files only (the generated completion_table.json and the names cache): no typer, no YAML, no
network, and silent on any fault. Prints VALUE<tab>DESCRIPTION lines, then maybe one line of directives for the shell
script: `:files`, `:dirs`, `:nospace`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from strata_engine.env import Env
from strata_engine.errors import LlmrunError

SHELLS = ("bash", "zsh", "fish", "powershell")
TABLE_FILE = Path(__file__).with_name("completion_table.json")
_MOST = 500
# Offered after hf.co/user/repo: because the repository's own list would need the network.
_QUANTS = ("Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K_S", "Q5_K_S", "BF16", "F16", "F32")
_HUBS = ("hf.co/", "modelscope:")
_PATH_STARTS = (".", "/", "~", "\\")
_UNSAFE = re.compile(r"([^\w@%+=:,./~-])")

Pairs = list[tuple[str, str]]


def answer(args: list[str]) -> int:
    """Print the candidates; always 0, so that a shell never shows an error in the middle of typing."""
    try:
        shell, words = args[0], args[args.index("--") + 1 :]
        text = render(shell, *complete(shell, words, Tables.load()))
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        sys.stdout.flush()
    except (OSError, ValueError, LookupError, TypeError, AttributeError, LlmrunError):
        if isinstance(sys.exc_info()[1], BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


class Tables:
    """What can be completed: commands and flags (generated), model names (generated and from the cache)."""

    def __init__(self, static: dict[str, Any], names: dict[str, Any]) -> None:
        self.globals: dict[str, list[str]] = static["globals"]
        self.commands: dict[str, dict[str, Any]] = static["commands"]
        self.aliases: dict[str, str] = static["aliases"]
        self.settings: dict[str, str] = static["settings"]
        self.variants: dict[str, list[str]] = {**static["models"], **names.get("models", {})}
        self.local: list[str] = names.get("local", [])

    @classmethod
    def load(cls) -> Tables:
        """From disk; a missing or broken names cache leaves the packaged names."""
        static = json.loads(TABLE_FILE.read_text(encoding="utf-8"))
        try:
            names = json.loads(Env().paths().completion.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            names = {}
        return cls(static, names if isinstance(names, dict) else {})


def complete(shell: str, words: list[str], tables: Tables) -> tuple[Pairs, set[str]]:
    """Candidates with descriptions for the last of `words` (the first is the program), and the directives."""
    if shell == "powershell":
        words = [*words[:-1], words[-1].removeprefix("+")]  # a lone "" would be dropped on the way to a program
    given = [dequote(w) for w in words[1:]] if shell == "bash" else words[1:]
    current = dequote(given.pop()) if shell in ("bash", "fish") else given.pop()
    place = _Place(tables, given)
    flag, equals, value = current.partition("=")
    if equals and flag.startswith("--") and not place.only_arguments:
        pairs, directives = _values(place.flags.get(flag, [""])[0], value, tables)
        return [(f"{flag}={v}", text) for v, text in pairs], directives
    if place.waiting_for:
        return _values(place.waiting_for, current, tables)
    if current.startswith("-") and not place.only_arguments:
        return [(f, kind[1]) for f, kind in place.flags.items() if f.startswith(current)], set()
    children = [(n, c["summary"]) for n, c in place.children.items() if n.startswith(current)]
    pairs, directives = _values(place.argument, current, tables)
    return ([*children, *pairs], set() if children else directives)


class _Place:
    """Where the cursor stands: which command, which flags are known there, what the next argument is."""

    def __init__(self, tables: Tables, given: list[str]) -> None:
        self.flags: dict[str, list[str]] = dict(tables.globals)
        self.children: dict[str, Any] = tables.commands  # possible next subcommands
        self.only_arguments = False
        self.waiting_for = ""
        self._arguments: list[str] = []
        self._count = 0
        for word in given:
            self._step(word, tables)

    def _step(self, word: str, tables: Tables) -> None:
        if self.waiting_for:
            self.waiting_for = ""
        elif self.only_arguments or not word.startswith("-") or word == "-":
            self._argument_or_command(tables.aliases.get(word, word) if self.children is tables.commands else word)
        elif word == "--":
            self.only_arguments = True
        elif "=" not in word:
            self.waiting_for = self.flags.get(word, [""])[0]

    def _argument_or_command(self, word: str) -> None:
        node = self.children.get(word)
        if node is None:
            self._count += 1
            self.children = {}
            return
        self.flags.update(node["flags"])
        self.children = node.get("commands", {})
        self._arguments = node["arguments"]
        self._count = 0

    @property
    def argument(self) -> str:
        """Kind of the next argument; the last one repeats when it ends in *."""
        if self._count < len(self._arguments):
            return self._arguments[self._count].rstrip("*")
        last = self._arguments[-1] if self._arguments else ""
        return last.rstrip("*") if last.endswith("*") else ""


def _values(kind: str, current: str, tables: Tables) -> tuple[Pairs, set[str]]:
    if kind in ("FILE", "DIR"):
        return [], {"files" if kind == "FILE" else "dirs"}
    if kind in ("MODEL", "LOCAL"):
        return _models(current, tables, only_local=kind == "LOCAL")
    if kind == "SETTING":
        return [(n, text) for n, text in tables.settings.items() if n.startswith(current)], set()
    words = [w for w in kind.split("|") if w and not w.isupper()] if "|" in kind else []
    return [(w, "") for w in words if w.startswith(current)], set()


def _models(current: str, tables: Tables, only_local: bool) -> tuple[Pairs, set[str]]:
    if current.startswith(_PATH_STARTS) or re.match(r"[A-Za-z]:[\\/]", current):
        return [], {"files"}
    found = {n: "downloaded" for n in tables.local if n.startswith(current) and current.startswith(_base(n))}
    if not only_local:
        found |= {n: "" for n in _known(current, tables) if n not in found}
    if not found:
        return [], {"files"}
    pairs = list(found.items())[:_MOST]
    return pairs, {"nospace"} if all(name.endswith(("/", ":")) for name, _ in pairs) else set()


def _base(name: str) -> str:
    # name:variant is offered once the name itself is typed; the plain name is offered before.
    base, colon, _ = name.rpartition(":")
    return base if colon and not base.endswith("/") else ""


def _known(current: str, tables: Tables) -> list[str]:
    base, colon, _ = current.partition(":")
    if base.startswith(("hf.co/", "hf://")) or (base.count("/") == 1 and colon):
        return [f"{base}:{q}" for q in _QUANTS if f"{base}:{q}".startswith(current)] if colon else []
    names = [n for n in tables.variants if n.startswith(current)]
    whole = base if base in tables.variants else ""
    names += [n for v in tables.variants.get(whole, []) if (n := f"{whole}:{v}").startswith(current)]
    return names + [hub for hub in _HUBS if current and hub.startswith(current)]


def dequote(word: str) -> str:
    """A shell word as typed so far, without its quotes and backslashes."""
    out, quote, index = "", "", 0
    while index < len(word):
        char = word[index]
        index += 1
        if char == "\\" and quote != "'" and index < len(word):
            out, index = out + word[index], index + 1
        elif quote and char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        else:
            out += char
    return out


def render(shell: str, pairs: Pairs, directives: set[str]) -> str:
    """The answer's text. Names with control characters are left out: they would break the line format."""
    lines: list[str] = []
    for value, text in pairs:
        if not value.isprintable():
            continue
        if shell == "bash":
            lines.append(_UNSAFE.sub(r"\\\1", value))
        else:
            lines.append(f"{value}\t{text}")
    if directives:
        lines.append(":" + ",".join(sorted(directives)))
    return "".join(line + "\n" for line in lines)
