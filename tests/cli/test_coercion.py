"""Flag values taken the short way are what typer's own coercion gives, and faults are told in its words."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import typer
from typer._click.exceptions import ClickException

from strata_cli.coercion import quicken

BOUNDED = Annotated[int, typer.Option(min=1, max=9)]


def command(
    text: str = "",
    whole: int | None = None,
    real: float = 0.5,
    texts: Annotated[list[str] | None, typer.Option()] = None,
    bounded: BOUNDED = 3,
    flag: bool = False,
) -> None:
    """Options of every kind we use."""


def parsed(args: list[str], quick: bool) -> Any:
    holder = typer.Typer(add_completion=False)
    holder.command()(command)
    parser: Any = typer.main.get_command(holder)
    if quick:
        for parameter in parser.params:
            quicken(parameter)
    try:
        return parser.make_context("x", list(args)).params
    except ClickException as error:  # the class and words of a refusal are compared too
        return type(error).__name__, str(error)


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--text", "5", "--whole", "5", "--real", "5", "--texts", "a", "--texts", "ü"],
        ["--whole", "-12", "--real", "-0.25", "--bounded", "1", "--flag"],
        ["--whole", "1_000", "--real", "1e-3"],
        ["--whole", " 7", "--real", "nan"],
        ["--whole", "7.0"],
        ["--whole", "٣"],
        ["--whole", "x"],
        ["--real", "0,5"],
        ["--real", ".5"],
        ["--bounded", "0"],
        ["--bounded", "9"],
        ["--bounded", "10"],
        ["--text", "\udc80"],
        ["--texts", "\udc80"],
        ["--text", ""],
        ["--whole", ""],
        ["--whole", "99999999999999999999"],
    ],
    ids=repr,
)
def test_the_short_way_gives_what_typer_gives(args):
    assert repr(parsed(args, quick=True)) == repr(parsed(args, quick=False))
