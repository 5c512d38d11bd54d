"""Runs the real program as a child: its output, exit code, and the CPU seconds it took."""

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


def cpu_seconds(args: list[str], env: dict[str, str], times: int = 3) -> float:
    """Least user + system time of several runs."""
    best = float("inf")
    for _ in range(times):
        child = subprocess.Popen(
            [sys.executable, "-m", "strata_cli", *args], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, _, used = os.wait4(child.pid, 0)
        child.returncode = 0  # reaped here, so that Popen does not look for it again
        best = min(best, used.ru_utime + used.ru_stime)
    return best


def install_command(folder: Path) -> Path:
    """An executable `llmrun` in `folder` that runs this checkout; the folder for PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "llmrun"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="{SOURCES}" exec "{sys.executable}" -m strata_cli "$@"\n', encoding="utf-8"
    )
    script.chmod(0o755)
    return folder
