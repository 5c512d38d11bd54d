"""Flags of speculative decoding: one group for the commands that load a model, one for the bench."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from strata_cli.keys import KEYS
from strata_engine.config import SPEC_METHODS
from strata_engine.errors import UsageError

_PANEL = "Speculation"
_SWITCH = "on|off"


def _spec(name: str, flag: str = "", metavar: str | None = "N") -> Any:
    text = KEYS[name].meaning
    return typer.Option(
        flag or KEYS[name].flag, metavar=metavar, help=text[0].upper() + text[1:], rich_help_panel=_PANEL
    )


@dataclass(frozen=True)
class SpecFlags:
    """How a model speculates. Field names are setting names; `spec_adaptive` as typed: on or off."""

    spec: Annotated[str | None, _spec("spec", metavar="|".join(SPEC_METHODS))] = None
    draft: Annotated[str | None, _spec("draft", metavar="MODEL")] = None
    spec_n_max: Annotated[int | None, _spec("spec_n_max")] = None
    spec_p_min: Annotated[float | None, _spec("spec_p_min", metavar="P")] = None
    spec_strict: Annotated[bool | None, _spec("spec_strict", "--spec-strict/--no-spec-strict", None)] = None
    spec_verify: Annotated[bool | None, _spec("spec_verify", "--spec-verify/--no-spec-verify", None)] = None
    spec_adaptive: Annotated[str | None, _spec("spec_adaptive", metavar=_SWITCH)] = None

    def __post_init__(self) -> None:
        self.values()

    def values(self) -> dict[str, Any]:
        """The settings that were given, checked. Raises UsageError."""
        found = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        for name, value in found.items():
            key = KEYS[name]
            try:
                found[name] = key.parse(value) if name == "spec_adaptive" else key.check(value)
            except ValueError as error:
                raise UsageError(f"{key.flag}: {error}") from error
        return found


@dataclass(frozen=True)
class SpecBenchFlags:
    """What the bench compares: methods side by side, on questions or on the ordinary tests."""

    spec: Annotated[
        str | None,
        typer.Option(
            "--spec", metavar="METHOD,..", help="Compare speculation methods: " + ", ".join(SPEC_METHODS),
            rich_help_panel=_PANEL,
        ),
    ] = None  # fmt: skip
    suite: Annotated[
        str | None,
        typer.Option("--suite", metavar="gsm8k-like|gsm8k|sums", help="Ask questions with known answers",
                     rich_help_panel=_PANEL),
    ] = None  # fmt: skip
    questions: Annotated[
        int | None,
        typer.Option("--questions", metavar="N", min=1, max=1000, help="Questions of the suite [16]",
                     rich_help_panel=_PANEL),
    ] = None  # fmt: skip
    draft: Annotated[str | None, _spec("draft", metavar="MODEL")] = None
    spec_n_max: Annotated[int | None, _spec("spec_n_max")] = None
    spec_p_min: Annotated[float | None, _spec("spec_p_min", metavar="P")] = None
    spec_adaptive: Annotated[str | None, _spec("spec_adaptive", metavar=_SWITCH)] = None

    def __post_init__(self) -> None:
        _ = self.methods, self.values()
        if self.questions is not None and self.suite is None:
            raise UsageError("--questions goes with --suite", "--suite gsm8k-like")

    @property
    def wanted(self) -> bool:
        """Is the speculation table asked for, not the ordinary one?"""
        return self.suite is not None or self.methods != ("none",)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods in order, each once; none alone when none were named. Raises UsageError."""
        names = tuple(dict.fromkeys((self.spec or "none").split(",")))
        for name in names:
            if name not in SPEC_METHODS:
                raise UsageError(f"--spec {self.spec}: {name!r} is not one of {', '.join(SPEC_METHODS)}")
        return names

    def values(self) -> dict[str, Any]:
        """Settings of all methods, checked. Raises UsageError."""
        return SpecFlags(None, self.draft, self.spec_n_max, self.spec_p_min, None, None, self.spec_adaptive).values()
