"""Flags that every command takes, read from anywhere on the command line before `--`, without typer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from strata_backends.names import KINDS, MEANING
from strata_engine.errors import UsageError

HELP = f"""\
Global flags (any command, any place before --):
  -h, --help            this text, or a command's own
  -V, --version         version
  --json, --jsonl       data as one JSON document, or as JSON lines
  -q, --quiet           no notes on stderr
  -v, -vv               say choices and reasons; more
  --debug               tracebacks and debug log
  --color WHEN          auto, always or never (also --no-color, NO_COLOR)
  --offline             never use the network
  -y, --yes             answer every question with yes
  --config FILE         config file in place of the user's
  --models FILE         extra models.yaml
  --log-file FILE       write the log there
  --log-format FORMAT   text or json
  --device SPEC         {MEANING}"""


@dataclass(frozen=True)
class GlobalFlags:
    """Values as typed; None = not given."""

    help: bool = False
    version: bool = False
    json: bool = False
    jsonl: bool = False
    quiet: bool = False
    verbose: int = 0
    debug: bool = False
    color: str | None = None
    offline: bool = False
    yes: bool = False
    config: str | None = None
    models: str | None = None
    log_file: str | None = None
    log_format: str | None = None
    device: str | None = None


_SWITCHES = {"--help": "help", "-h": "help", "--version": "version", "-V": "version", "--json": "json",
             "--jsonl": "jsonl", "-q": "quiet", "--quiet": "quiet", "--debug": "debug", "--offline": "offline",
             "-y": "yes", "--yes": "yes"}  # fmt: skip
_VALUES = {"--color": "color", "--config": "config", "--models": "models", "--log-file": "log_file",
           "--log-format": "log_format", "--device": "device"}  # fmt: skip
_DEVICES = "|".join(("auto", *KINDS))
_CHOICES = {"color": ("auto", "always", "never"), "log_format": ("text", "json")}


def kinds() -> dict[str, list[str]]:
    """Flag -> [kind of value, help] for completion: "" for a switch, a|b for choices, FILE for a path."""
    found: dict[str, list[str]] = {}
    for line in HELP.splitlines()[1:]:
        names, _, text = line.strip().partition("  ")
        value = ""
        for part in names.split(", "):
            name, _, metavar = part.partition(" ")
            value = metavar or value
            found[name] = ["", text.strip()]
        if value:
            choices = _CHOICES.get(_VALUES[names.split(" ")[0]])
            found[names.split(" ")[0]][0] = "|".join(choices) if choices else _DEVICES if value == "SPEC" else value
    return {**found, "--no-color": ["", "no colour"], "--verbose": found["-v"]}


def given_switches(argv: list[str]) -> GlobalFlags:
    """Only the flags without a value: enough to report that another flag is wrong."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    switches: dict[str, Any] = {_SWITCHES[word]: True for word in words if word in _SWITCHES}
    return GlobalFlags(**switches)


def split(argv: list[str]) -> tuple[GlobalFlags, list[str]]:
    """The global flags, and the rest in order. Raises UsageError for a missing or wrong value."""
    flags, rest = GlobalFlags(), []
    index = 0
    while index < len(argv):
        word = argv[index]
        index += 1
        if word == "--":
            return flags, [*rest, "--", *argv[index:]]
        name, equals, value = word.partition("=")
        if word in _SWITCHES:
            flags = replace(flags, **{_SWITCHES[word]: True})
        elif word in ("-v", "--verbose"):
            flags = replace(flags, verbose=flags.verbose + 1)
        elif word == "-vv":
            flags = replace(flags, verbose=2)
        elif word == "--no-color":
            flags = replace(flags, color="never")
        elif name in _VALUES:
            if not equals:
                if index >= len(argv):
                    raise UsageError(f"{name} needs a value")
                value, index = argv[index], index + 1
            flags = replace(flags, **{_VALUES[name]: _checked(name, value)})
        else:
            rest.append(word)
    return flags, rest


def _checked(name: str, value: str) -> str:
    allowed = _CHOICES.get(_VALUES[name])
    if allowed and value not in allowed:
        raise UsageError(f"{name} {value}: not one of {', '.join(allowed)}")
    return value
