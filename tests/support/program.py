"""Runs the real program as a child: its output, exit code, and what it imports."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = os.pathsep.join(str(ROOT / part) for part in (".", "backends", "kernels"))


@dataclass(frozen=True)
class Result:
    """What a finished child left."""

    code: int
    out: str
    err: str


def environment(home: Path, **changes: str | None) -> dict[str, str]:
    """A bare environment with its own home; None removes a variable."""
    values: dict[str, str | None] = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": SOURCES,
        "HOME": str(home),
        "LLMRUN_HOME": str(home / "llmrun"),
        "LLMRUN_OFFLINE": "1",
        "LC_ALL": "C.UTF-8",
        **changes,
    }
    return {name: value for name, value in values.items() if value is not None}


def run(args: list[str], env: dict[str, str], cwd: Path | None = None, timeout_s: float = 60) -> Result:
    """`python -m strata_cli ARGS` to its end, without a terminal and without input."""
    command = [sys.executable, "-m", "strata_cli", *args]
    done = subprocess.run(
        command,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


_LOADED = """
import sys
from strata_cli.main import main
code = main(sys.argv[1:])
sys.stderr.write("LOADED " + " ".join(sorted(sys.modules)) + "\\n")
sys.exit(code)
"""


def imports(args: list[str], env: dict[str, str]) -> set[str]:
    """All modules that a command has imported when it ends well."""
    child = [sys.executable, "-c", _LOADED, *args]
    done = subprocess.run(child, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split()[1:])


def install_command(folder: Path) -> Path:
    """An executable `llmrun` in `folder` that runs this checkout; the folder for PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "llmrun"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="{SOURCES}" exec "{sys.executable}" -m strata_cli "$@"\n', encoding="utf-8"
    )
    script.chmod(0o755)
    return folder
