"""Budgets for our own code (docs/architecture.md): hard stops for files, functions and parameters."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ("strata_cli", "strata_engine", "backends/strata_backends", "kernels/strata_kernels")
LONGEST_FILE, LONGEST_FUNCTION = 600, 80


def test_files_are_short():
    paths = [p for package in (*PYTHON, "tests", "benches") for p in (ROOT / package).rglob("*.py")]
    paths += [p for pattern in ("*.cpp", "*.h", "*.hpp") for p in (ROOT / "kernels" / "cpu").rglob(pattern)]
    lengths = {p.relative_to(ROOT).as_posix(): len(p.read_text(encoding="utf-8").splitlines()) for p in paths}
    assert {name: n for name, n in lengths.items() if n > LONGEST_FILE} == {}
    ours = sorted(n for name, n in lengths.items() if name.startswith(("strata", "backends", "kernels")))
    assert ours[len(ours) // 2] <= 150


def test_functions_are_short():
    found = {}
    for package in PYTHON:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    if lines > LONGEST_FUNCTION:
                        found[f"{path.relative_to(ROOT).as_posix()}:{node.name}"] = lines
    assert found == {}
