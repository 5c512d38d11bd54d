"""Rules that import-linter cannot see: who may name a vendor, print, read the environment, or catch everything."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("strata_cli", "strata_engine", "backends/strata_backends", "kernels/strata_kernels")
VENDOR = re.compile(r"torch\.(cuda|musa|version\.hip)|\bgfx[0-9a-f]{3,4}\b|\bsm_[0-9]{2}\b")
# Each place catches everything for a reason written beside it.
CATCH_ALL = {
    "strata_cli/main.py": 1,  # last resort of a command
    "strata_cli/server/access.py": 1,  # request handler: a 500 for this client only
    "strata_cli/server/generation.py": 1,  # the same, in the thread that prepares a request
    "strata_engine/runtime/attempt.py": 1,  # one sequence, or one drafter, fails alone
    "kernels/strata_kernels/gpu/worker.py": 1,  # a compiler raises anything; the answer tells the builder
}


def sources(*packages: str) -> Iterator[tuple[str, str]]:
    for package in packages or PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def test_vendor_names_stay_in_backends_and_kernels():
    found = [
        f"{name}: {m.group()}" for name, text in sources("strata_cli", "strata_engine") for m in VENDOR.finditer(text)
    ]
    assert found == []


def calls(tree: ast.AST, name: str) -> int:
    return sum(isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == name for n in ast.walk(tree))


def test_nothing_prints_but_the_output_module():
    assert [name for name, text in sources() if calls(ast.parse(text), "print")] == []


def test_the_environment_is_read_in_one_engine_file():
    pattern = re.compile(r"os\.(environ|getenv)")
    compiler = "kernels/strata_kernels/gpu/worker.py"  # a process of its own, which clears what would change its work
    found = [n for n, t in sources() if pattern.search(t) and n not in ("strata_engine/env.py", compiler)]
    assert found == []


def test_homes_are_looked_up_without_failing():
    # Path.expanduser and Path.home raise for an account without a home; strata_engine.paths.expand does not.
    pattern = re.compile(r"\)\.expanduser\(|Path\.home\(")
    assert [name for name, text in sources() if pattern.search(text)] == []


def catch_alls(tree: ast.AST) -> int:
    """Handlers of Exception or wider that do not raise it again."""
    count = 0
    for node in ast.walk(tree):
        cleans_up = (
            isinstance(node, ast.ExceptHandler) and isinstance(node.body[-1], ast.Raise) and not node.body[-1].exc
        )
        if isinstance(node, ast.ExceptHandler) and not cleans_up:
            names = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else {"BaseException"}
            count += bool(names & {"Exception", "BaseException"})
    return count


def test_everything_is_caught_in_the_listed_places_only():
    found = {name: n for name, text in sources() if (n := catch_alls(ast.parse(text)))}
    assert found == CATCH_ALL


def test_asserts_are_not_used_outside_tests_for_more_than_invariants():
    # An assert vanishes under -O: input, files and devices raise errors of the tree instead.
    found = {n: c for n, t in sources() if (c := sum(isinstance(x, ast.Assert) for x in ast.walk(ast.parse(t))))}
    assert sum(found.values()) <= 10, found


def test_transformers_is_used_in_tests_only():
    pattern = re.compile(r"^\s*(import|from) transformers\b", re.MULTILINE)
    assert [name for name, text in sources() if pattern.search(text)] == []


@pytest.mark.parametrize("pattern", [r"\bTODO\b", r"\bFIXME\b", r"raise NotImplementedError"])
def test_no_unfinished_marks(pattern: str):
    assert [name for name, text in sources() if re.search(pattern, text)] == []


def test_every_module_says_its_duty():
    missing = [n for n, t in sources() if t.strip() and not ast.get_docstring(ast.parse(t))]
    assert missing == []
