"""Runs one command of the real program inside the test process: faster than a child, same parsing and same errors."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

from strata_cli import main
from strata_cli.app import App
from strata_cli.globals import split
from strata_cli.output import Output
from strata_engine.env import Env
from strata_engine.errors import LlmrunError
from tests.support.program import Result


def values(home: Path, **changes: str) -> dict[str, str]:
    """A bare environment with its own home; no real hub can be reached by accident."""
    return {"HOME": str(home), "LLMRUN_HOME": str(home / "llmrun"), "HF_HOME": str(home / "hf"),
            "HF_ENDPOINT": "http://127.0.0.1:1", **changes}  # fmt: skip


def app_of(args: list[str], environment: Mapping[str, str]) -> tuple[App, list[str]]:
    """An App on text buffers for these arguments, and the arguments without global flags."""
    flags, rest = split(args)
    env = Env(environment)
    mode = "jsonl" if flags.jsonl else "json" if flags.json else "text"
    output = Output(mode, flags.quiet, flags.verbose, False, io.StringIO(), io.StringIO())
    return App(flags, env, env.paths(), output), rest


def call(args: list[str], environment: Mapping[str, str]) -> Result:
    """Exit code, stdout and stderr of a command."""
    try:
        app, rest = app_of(args, environment)
    except LlmrunError as error:
        return Result(error.exit_code, "", error.message)
    try:
        code = main._dispatch(app, rest)
    except LlmrunError as error:
        code = main._report(app, error)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    assert isinstance(app.output.stdout, io.StringIO)
    assert isinstance(app.output.stderr, io.StringIO)
    return Result(code, app.output.stdout.getvalue(), app.output.stderr.getvalue())
