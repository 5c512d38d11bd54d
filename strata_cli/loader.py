"""A command's parser: imports the command's module and lets typer build it. Used by main and by the generators."""

from __future__ import annotations

import importlib
from typing import Any

from strata_cli.command_table import Command


def load(command: Command) -> Any:
    """The click command (or group) of one table line; its module is imported now."""
    import typer

    module_name, function_name = command.target.split(":")
    target = getattr(importlib.import_module(f"strata_cli.commands.{module_name}"), function_name)
    if isinstance(target, typer.Typer):
        return typer.main.get_command(target)
    holder = typer.Typer(add_completion=False, rich_markup_mode=None)
    holder.command(command.name)(target)
    return typer.main.get_command(holder)
