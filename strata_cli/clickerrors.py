"""Turns the command parser's own errors into UsageError and its exits into exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strata_engine.errors import UsageError


@contextmanager
def as_usage_error() -> Iterator[None]:
    """typer 0.29 carries its own copy of click; its classes are reached through typer only."""
    import typer
    from typer._click import exceptions

    try:
        yield
    except exceptions.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "llmrun"
        raise UsageError(error.format_message(), f"{where} --help") from error
    except typer.Exit as stop:
        raise SystemExit(stop.exit_code) from stop
    except typer.Abort as stop:
        raise KeyboardInterrupt from stop
