"""The one place that writes to the terminal: answers and data to stdout, all else to stderr. No torch, no rich."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

# Control bytes that must not reach a terminal from model text or file names; newline and tab stay.
_CONTROL = {c: None for c in (*range(0x00, 0x09), *range(0x0B, 0x20), 0x7F, *range(0x80, 0xA0))}


def clean(text: str) -> str:
    """Text without control characters other than newline and tab; lone surrogates become U+FFFD."""
    return text.translate(_CONTROL).encode("utf-8", "replace").decode("utf-8") if text else text


@dataclass
class Output:
    """Sink of one command run. `mode`: text | json | jsonl. `colour`: ANSI allowed on stderr and stdout."""

    mode: str = "text"
    quiet: bool = False
    verbose: int = 0
    colour: bool = False
    stdout: TextIO = sys.stdout
    stderr: TextIO = sys.stderr

    @property
    def json_mode(self) -> bool:
        """Data is wanted, not prose."""
        return self.mode in ("json", "jsonl")

    def write(self, text: str) -> None:
        """Answer text as it comes, control characters removed, flushed."""
        self.stdout.write(clean(text))
        self.stdout.flush()

    def line(self, text: str = "") -> None:
        """One line of data on stdout."""
        self.stdout.write(clean(text) + "\n")

    def data(self, schema: str, value: dict[str, Any]) -> None:
        """One JSON document; `schema` like llmrun.ls.v1."""
        document = {"schema": schema, **value}
        indent = 2 if self.mode == "json" else None
        self.stdout.write(json.dumps(document, ensure_ascii=False, indent=indent, default=str) + "\n")
        self.stdout.flush()

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
        """Aligned columns on stdout; `right` lists columns aligned to the right. Width counts terminal cells."""
        from strata_cli.columns import align

        for text in align(headers, rows, right):
            self.line(text)

    def note(self, text: str) -> None:
        """Something worth knowing, on stderr; silenced by --quiet."""
        if not self.quiet:
            self.stderr.write(clean(text) + "\n")
            self.stderr.flush()

    def detail(self, text: str) -> None:
        """Shown with -v only, on stderr."""
        if self.verbose:
            self.note(text)

    def warn(self, text: str) -> None:
        """The user lost something or should act; on stderr, never silenced."""
        self.stderr.write("warning: " + clean(text) + "\n")
        self.stderr.flush()

    def error(self, text: str, hint: str = "") -> None:
        """The last word of a failed command."""
        self.stderr.write("error: " + clean(text) + "\n")
        if hint:
            self.stderr.write("  try: " + clean(hint) + "\n")
        self.stderr.flush()
