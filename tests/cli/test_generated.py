"""Everything derived from the code is fresh (`python -m strata_cli.docs` writes it), and help names every flag."""

from __future__ import annotations

import re

import pytest

from strata_cli import docs
from strata_cli.command_table import COMMANDS
from strata_cli.keys import KEYS
from strata_cli.loader import load
from strata_engine.env import KNOWN


def test_generated_files_are_fresh():
    stale = [path.relative_to(docs.ROOT).as_posix() for path in docs.stale()]
    assert stale == [], "run: python -m strata_cli.docs"


def parsers(parser, name):
    yield name, parser
    for child, command in getattr(parser, "commands", {}).items():
        yield from parsers(command, f"{name} {child}")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_of_a_command_names_each_of_its_flags_with_a_text(command):
    for name, parser in parsers(load(command), command.name):
        with parser.make_context(f"llmrun {name}", [], resilient_parsing=True, terminal_width=100) as context:
            text = parser.get_help(context)
        assert text.startswith(f"Usage: llmrun {name}")
        for parameter in parser.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert parameter.help, (name, parameter.name)
                for flag in (*parameter.opts, *parameter.secondary_opts):
                    assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text), (name, flag)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_no_flag_of_a_command_hides_a_global_one(command):
    from strata_cli.globals import kinds

    for name, parser in parsers(load(command), command.name):
        own = {flag for p in parser.params if p.param_type_name == "option" for flag in p.opts} - {"--help"}
        assert own & set(kinds()) == set(), name


def test_every_variable_of_a_setting_is_a_known_one():
    assert {key.env for key in KEYS.values() if key.env} <= KNOWN


def test_every_exit_code_of_the_error_tree_is_documented():
    rows = "\n".join(docs.exit_code_rows())
    for code in range(1, 12):
        assert f"| {code} |" in rows
