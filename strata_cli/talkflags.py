"""Flags of run and chat beside the shared load and sampling groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from strata_engine.errors import UsageError
from strata_engine.units import parse_seconds

_LEVELS = {"on": True, "none": False, "off": False, "low": "low", "medium": "medium", "high": "high"}
_TALK, _ONCE, _SERVER = "Conversation", "Answer", "Server"


def _talk(*names: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_TALK, **more)


def _once(*names: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_ONCE, **more)


class ThinkCommand(TyperCommand):
    """Lets --think stand alone: a following word is never taken as its level (that needs --think=LEVEL)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the base class, with a bare --think meaning --think=on."""
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, ["--think=on" if a == "--think" else a for a in args[:end]] + args[end:])


@dataclass(frozen=True)
class TalkFlags:
    """What is said, and how thinking and numbers are shown."""

    system: Annotated[str | None, _talk("--system", "-s", metavar="TEXT|@FILE", help="System text")] = None
    file: Annotated[
        list[str] | None, _talk("--file", "-f", metavar="FILE", help="Put a text file into the prompt (repeat)")
    ] = None
    image: Annotated[
        list[str] | None, _talk("--image", metavar="FILE", help="An image for a model with vision (repeat)")
    ] = None
    think: Annotated[
        str | None, _talk("--think", metavar="[=low|medium|high|none]", help="Let the model think first")
    ] = None
    no_think: Annotated[bool, _talk("--no-think", help="Answer without thinking")] = False
    hide_thinking: Annotated[bool, _talk("--hide-thinking", help="Do not show the thinking")] = False
    stats: Annotated[bool, _talk("--stats", help="A line of statistics after each answer, on stderr")] = False

    def __post_init__(self) -> None:
        if self.think is not None and self.think.lower() not in _LEVELS:
            raise UsageError(f"--think={self.think}: not one of low, medium, high, none")
        if self.think is not None and self.no_think:
            raise UsageError("--think and --no-think contradict each other")

    @property
    def thinking(self) -> bool | str | None:
        """As ChatRequest.thinking."""
        if self.no_think:
            return False
        return None if self.think is None else _LEVELS[self.think.lower()]


@dataclass(frozen=True)
class OnceFlags:
    """How one answer is delivered."""

    raw: Annotated[bool, _once("--raw", help="Send the prompt as it is, without the chat template")] = False
    count: Annotated[int, _once("--n", metavar="N", help="Number of answers", min=1, max=64)] = 1
    extract: Annotated[bool, _once("--extract", "-x", help="Print only the first code block")] = False
    file_out: Annotated[str | None, _once("--output", "-o", metavar="FILE", help="Write the answer to a file")] = None
    strict: Annotated[bool, _once("--strict", help="Exit code 11 when the answer was cut by length")] = False
    timeout: Annotated[
        str | None, _once("--timeout", metavar="TIME", help="Most time for the answer: 30s, 5m (-1: no limit)")
    ] = None

    def __post_init__(self) -> None:
        _ = self.timeout_s

    @property
    def timeout_s(self) -> float | None:
        """Seconds, None without a limit. Raises UsageError."""
        if self.timeout is None:
            return None
        try:
            seconds = parse_seconds(self.timeout)
        except ValueError as error:
            raise UsageError(f"--timeout: {error}") from error
        if seconds <= 0:
            raise UsageError(f"--timeout {self.timeout}: no time at all", "30s, or -1 for no limit")
        return None if seconds == float("inf") else seconds


@dataclass(frozen=True)
class KeepFlags:
    """Which saved conversation a chat goes on with."""

    resume: Annotated[bool, _talk("--continue", help="Go on with the newest saved conversation")] = False
    session: Annotated[
        str | None,
        _talk("--session", metavar="NAME", help="Go on with this conversation, or begin it; saved as you go"),
    ] = None
    no_history: Annotated[bool, _talk("--no-history", help="Keep no history file and do not save the chat")] = False


@dataclass(frozen=True)
class PlaceFlags:
    """Where the model runs."""

    server: Annotated[
        str | None, typer.Option("--server", metavar="URL", help="Use this server", rich_help_panel=_SERVER)
    ] = None
    no_server: Annotated[
        bool, typer.Option("--no-server", help="Load the model in this process", rich_help_panel=_SERVER)
    ] = False

    def __post_init__(self) -> None:
        if self.server and self.no_server:
            raise UsageError("--server and --no-server contradict each other")
