"""`llmrun --help` from the command table: no typer, no command module."""

from __future__ import annotations

import difflib
from dataclasses import replace

from strata_cli import globals as global_flags
from strata_cli.columns import align
from strata_cli.command_table import COMMANDS


def overview() -> str:
    """The whole text of `llmrun --help`."""
    lines = ["Usage: llmrun COMMAND [ARGUMENTS]", "", "Runs language models on machines people own.", ""]
    texts = align((), [(c.name, c.summary) for c in COMMANDS])
    for group in dict.fromkeys(c.group for c in COMMANDS):
        lines.append(f"{group}:")
        lines += ["  " + text for c, text in zip(COMMANDS, texts, strict=True) if c.group == group]
        lines.append("")
    examples = ('  llmrun run "Why is the sky blue?"', "  llmrun chat smollm2", "  llmrun serve --port 8080")
    return "\n".join([*lines, "Examples:", *examples, "", global_flags.HELP])


def nearest_command(name: str) -> str:
    """A hint with near names, or where to find the list."""
    names = [n for c in COMMANDS for n in (c.name, *c.aliases)]
    near = difflib.get_close_matches(name, names, 3)
    return "llmrun " + " or llmrun ".join(near) if near else "llmrun --help"


def with_help(flags: global_flags.GlobalFlags) -> global_flags.GlobalFlags:
    """The same flags with --help set."""
    return replace(flags, help=True)
