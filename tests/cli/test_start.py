"""Cheap start: what must not be imported, and how much may be."""

from __future__ import annotations

import pytest

from tests.support.program import environment, imports

HEAVY = (
    "torch",
    "numpy",
    "transformers",
    "tokenizers",
    "huggingface_hub",
    "httpx",
    "starlette",
    "rich",
    "prompt_toolkit",
)
# No seconds here: a test that times fails on a busy machine. What a start costs is what it imports; benches/start.py
# times it. Measured: 96, 105, 327; `import asyncio` alone brings 100.
MOST_MODULES = {"tab": 120, "help": 135, "ls": 400}


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["ls"],
        ["ls", "--all", "--json"],
        ["completion", "bash"],
        ["config", "list"],
        ["version"],
        ["hw"],
        ["run", "--help"],
        ["serve", "--help"],
        ["fit"],
        ["cache", "path"],
    ],
    ids=" ".join,
)
def test_a_light_command_imports_nothing_heavy(tmp_path, args):
    assert packages(imports(args, environment(tmp_path))) & set(HEAVY) == set()


@pytest.mark.parametrize("args", [["__complete", "bash", "--", "llmrun", "chat", "s"], ["--help"]], ids=["tab", "help"])
def test_completion_and_help_do_not_even_import_the_command_parser(tmp_path, args):
    assert packages(imports(args, environment(tmp_path))) & {"typer", "click", "yaml", *HEAVY} == set()


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("tab", ["__complete", "bash", "--", "llmrun", "chat", "smol"]),
        ("help", ["--help"]),
        ("ls", ["ls", "--all"]),
    ],
)
def test_a_start_imports_few_modules(tmp_path, name, args):
    modules = imports(args, environment(tmp_path))
    assert len(modules) <= MOST_MODULES[name], sorted(modules)
