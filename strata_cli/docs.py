"""Writes everything that is derived from the code: `python -m strata_cli.docs` (with --check it only compares).

docs/cli.md, docs/env.md, completions/*, the completion table and the help snapshots of tests/cli. A test runs the
check, so a changed flag without a fresh run of this command fails the gate.
"""

from __future__ import annotations

import json
import re
import sys
from enum import Enum
from pathlib import Path
from typing import Any

from strata_cli import completion_scripts, helptext
from strata_cli import globals as global_flags
from strata_cli.command_table import COMMANDS, Command
from strata_cli.completion import TABLE_FILE
from strata_cli.keys import KEYS, Key
from strata_cli.loader import load
from strata_engine import errors
from strata_engine.env import VARIABLES

ROOT = Path(__file__).resolve().parents[1]
_WIDTH = 100
_OF_LOCAL = ("rm", "stop")  # commands whose MODEL must be on this disk
_SIGNALS = (("130", "stopped by Ctrl-C"), ("141", "the reader of stdout went away (`| head`)"), ("143", "terminated"))
_MADE = "<!-- written by `python -m strata_cli.docs`; do not edit -->"


def outputs() -> dict[Path, str]:
    """Every generated file with the text it should have."""
    parsers = {command: load(command) for command in COMMANDS}
    texts = {ROOT / "completions" / completion_scripts.FILES[s]: t for s, t in completion_scripts.SCRIPTS.items()}
    texts[TABLE_FILE] = _json_lines(completion_table(parsers))
    texts[ROOT / "docs/cli.md"] = cli_page(parsers)
    texts[ROOT / "docs/env.md"] = env_page()
    snapshots = ROOT / "tests/cli/snapshots"
    texts[snapshots / "help.txt"] = helptext.overview() + "\n"
    for command, parser in parsers.items():
        texts[snapshots / f"help-{command.name}.txt"] = "\n\n".join(_helps(command.name, parser)) + "\n"
    return texts


def stale() -> dict[Path, str]:
    """Generated files whose text on disk differs, with the text they should have."""
    return {p: text for p, text in outputs().items() if not p.is_file() or p.read_text(encoding="utf-8") != text}


def completion_table(parsers: dict[Command, Any]) -> dict[str, Any]:
    """Commands, flags with their kind of value, argument kinds, packaged model names: what a Tab needs to know."""
    from strata_engine.registry.catalog import load_catalog

    models: dict[str, list[str]] = {}
    for entry in load_catalog().entries.values():
        for name in entry.names:
            models[name] = [v.name for v in entry.variants] if len(entry.variants) > 1 else []
    return {
        "globals": global_flags.kinds(),
        "commands": {c.name: {"summary": c.summary, **_node(p, c.name in _OF_LOCAL)} for c, p in parsers.items()},
        "aliases": {alias: c.name for c in COMMANDS for alias in c.aliases},
        "settings": {name: key.meaning for name, key in KEYS.items()},
        "models": models,
    }


def _json_lines(table: dict[str, dict[str, Any]]) -> str:
    # One entry a line: small, and a changed flag shows as one changed line.
    parts = []
    for name, entries in table.items():
        lines = [f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in entries.items()]
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _node(parser: Any, local: bool = False) -> dict[str, Any]:
    flags: dict[str, list[str]] = {}
    arguments: list[str] = []
    for parameter in parser.params:
        if parameter.param_type_name == "argument":
            names = re.findall(r"[A-Za-z_|]+", parameter.metavar or parameter.name.upper())
            arguments += ["LOCAL" if name == "MODEL" and local else name for name in names]
            arguments[-1] += "*" if parameter.nargs == -1 else ""
            continue
        if getattr(parameter, "hidden", False) or "--help" in parameter.opts:
            continue
        kind = "" if parameter.is_flag else (parameter.metavar or _choices(parameter) or "TEXT")
        for flag in (*parameter.opts, *parameter.secondary_opts):
            flags[flag] = [kind, parameter.help or ""]
    node: dict[str, Any] = {"flags": flags, "arguments": arguments}
    children = getattr(parser, "commands", None)
    default = getattr(parser, "default_command", None)
    if children and default:  # what it takes can also follow the group's name
        own = _node(children[default])
        node = {"flags": {**flags, **own["flags"]}, "arguments": own["arguments"]}
    if children:
        node["commands"] = {n: {"summary": c.get_short_help_str(80), **_node(c)} for n, c in children.items()}
    return node


def _choices(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    return "|".join(str(member.value) for member in kind) if isinstance(kind, type) and issubclass(kind, Enum) else ""


def _helps(name: str, parser: Any) -> list[str]:
    with parser.make_context(f"llmrun {name}", [], resilient_parsing=True, terminal_width=_WIDTH) as context:
        texts = [parser.get_help(context).rstrip()]
    for child, command in getattr(parser, "commands", {}).items():
        texts += _helps(f"{name} {child}", command)
    return texts


def cli_page(parsers: dict[Command, Any]) -> str:
    """docs/cli.md."""
    lines = [_MADE, "", "# Commands of llmrun", "", "```", helptext.overview(), "```", "", "## Exit codes", ""]
    lines += ["| code | meaning |", "|---|---|", "| 0 | success |", *exit_code_rows()]
    lines += [f"| {code} | {meaning} |" for code, meaning in _SIGNALS]
    lines += ["", "## Settings", ""]
    lines += ["Order: flag, environment, config file, the model's own defaults, built-in value. `llmrun config list`"]
    lines += ["shows each value with its origin. The config file is TOML with these names at its top level.", ""]
    lines += ["| setting | meaning | default | flag | variable |", "|---|---|---|---|---|"]
    lines += [_setting_row(key) for key in KEYS.values()]
    for command, parser in parsers.items():
        aliases = f" (also {', '.join(command.aliases)})" if command.aliases else ""
        lines += ["", f"## {command.name}{aliases}", "", command.summary + "."]
        for text in _helps(command.name, parser):
            lines += ["", "```", text, "```"]
    return "\n".join(lines) + "\n"


def exit_code_rows() -> list[str]:
    """One table row an exit code of the error tree."""
    rows: dict[int, list[str]] = {}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.LlmrunError) and "exit_code" in vars(kind):
            rows.setdefault(kind.exit_code, []).append((kind.__doc__ or "").split("\n")[0])
    rows[1] = ["Another error."]
    return [f"| {code} | {' '.join(texts)} |" for code, texts in sorted(rows.items())]


def _setting_row(key: Key) -> str:
    meaning = key.meaning + (f" ({', '.join(key.choices)})" if key.choices else "")
    default = {True: "true", False: "false", "": "(none)"}.get(key.default, str(key.default))
    if key.kind in ("int", "float"):
        default = f"{key.default:g}"
    return f"| `{key.name}` | {meaning} | {default} | {_known_flag(key)} | {f'`{key.env}`' if key.env else ''} |"


def _known_flag(key: Key) -> str:
    return f"`{key.flag}`" if key.name not in ("editor", "offline") else "`--offline`" if key.name == "offline" else ""


def env_page() -> str:
    """docs/env.md."""
    lines = [_MADE, "", "# Environment variables", "", "An empty value counts as unset.", ""]
    lines += ["| variable | meaning |", "|---|---|", *(f"| `{v.name}` | {v.meaning} |" for v in VARIABLES)]
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    """Write what changed, or with --check name it and return 1."""
    changed = stale()
    for path, text in changed.items():
        sys.stdout.write(f"{path.relative_to(ROOT).as_posix()}\n")
        if "--check" not in argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return 1 if changed and "--check" in argv else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
