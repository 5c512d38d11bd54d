"""A command's parser: imports the command's module and lets typer build it. Used by main and by the generators."""

from __future__ import annotations

import importlib
from typing import Any

from strata_cli.coercion import quicken
from strata_cli.command_table import Command


def load(command: Command) -> Any:
    """The click command (or group) of one table line; its module is imported now."""
    import typer

    module_name, function_name = command.target.split(":")
    target = getattr(importlib.import_module(f"strata_cli.commands.{module_name}"), function_name)
    if not isinstance(target, typer.Typer):
        holder = typer.Typer(add_completion=False, rich_markup_mode=None)
        holder.command(command.name)(target)
        target = holder
    parser = typer.main.get_command(target)
    _finish(parser)
    return parser


def _finish(parser: Any) -> None:
    """Help in our form: arguments as MODEL or [MODEL] without a Python type, and where the global flags are told."""
    help_option = parser.get_help_option  # made on demand, unlike the others
    parser.get_help_option = lambda context: quicken(help_option(context))
    for parameter in parser.params:
        quicken(parameter)
        if parameter.param_type_name == "argument":
            _plain(parameter)
    parser.epilog = "Flags of every command (--json, --quiet, --offline, ...): llmrun --help"
    for child in getattr(parser, "commands", {}).values():
        _finish(child)


def _plain(argument: Any) -> None:
    name = argument.metavar or argument.name.upper()
    usage = name if argument.required or "[" in name else f"[{name}]"
    if argument.nargs != 1 and not usage.endswith("..."):
        usage += "..."
    record = argument.get_help_record
    argument.get_usage_pieces = lambda context: [usage]
    argument.get_help_record = lambda context: (name, record(context)[1])
