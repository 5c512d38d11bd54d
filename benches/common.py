"""What the benches share: running both programs, machine facts, medians."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_json(command: list[str], timeout_s: float = 1800) -> dict:
    """Run a program that prints one JSON document (or its last line is one)."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nfailed with {done.returncode}: {done.stderr[-2000:]}")
    try:
        return json.loads(done.stdout)
    except ValueError:
        return json.loads(done.stdout.strip().splitlines()[-1])


def llmrun(*args: str) -> list[str]:
    """Command line of our program, from this interpreter."""
    return [sys.executable, "-m", "strata_cli", *args]


def peer(driver: str, command: str, model: str, lib: str, *args: str) -> list[str]:
    """Command line of the peer driver."""
    return [sys.executable, driver, command, model, "--lib", lib, *args]


def emit(**record: object) -> None:
    """One JSON line."""
    print(json.dumps(record, ensure_ascii=False), flush=True)


def spread(values: list[float]) -> dict[str, float]:
    """Median and median distance from it."""
    median = statistics.median(values)
    return {"median": round(median, 3), "mad": round(statistics.median(abs(v - median) for v in values), 3)}
