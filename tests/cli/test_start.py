"""Cheap start: what must not be imported, and how much processor time a start may take."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.program import cpu_seconds, environment

HEAVY = (
    "torch",
    "numpy",
    "transformers",
    "tokenizers",
    "huggingface_hub",
    "httpx",
    "fastapi",
    "rich",
    "prompt_toolkit",
)
CHILD = """
import sys
from strata_cli.main import main
code = main(sys.argv[1:])
sys.stderr.write("LOADED " + " ".join(sorted({name.split(".")[0] for name in sys.modules})) + "\\n")
sys.exit(code)
"""


def loaded(args: list[str], env: dict[str, str]) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *args], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split()[1:])


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
    assert loaded(args, environment(tmp_path)) & set(HEAVY) == set()


@pytest.mark.parametrize("args", [["__complete", "bash", "--", "llmrun", "chat", "s"], ["--help"]], ids=["tab", "help"])
def test_completion_and_help_do_not_even_import_the_command_parser(tmp_path, args):
    assert loaded(args, environment(tmp_path)) & {"typer", "click", "yaml", *HEAVY} == set()


# The best of several runs: other work on the machine only ever adds time.
def test_help_takes_less_than_0_4_s_of_processor_time(tmp_path):
    assert cpu_seconds(["--help"], environment(tmp_path)) < 0.4


def test_one_tab_takes_less_than_0_1_s_of_processor_time(tmp_path):
    words = ["__complete", "bash", "--", "llmrun", "chat", "smol"]
    assert cpu_seconds(words, environment(tmp_path), times=5) < 0.1


def test_listing_takes_less_than_0_6_s_of_processor_time(tmp_path):
    assert cpu_seconds(["ls", "--all"], environment(tmp_path)) < 0.6
