"""The default model for tests that need real weights: fetched into the product's own store by its own pull."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path


def llmrun(*args: str, timeout_s: float = 600, **options) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    command = [sys.executable, "-m", "strata_cli", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, **options)


@cache
def smollm_path() -> Path:
    """The GGUF file of the catalog's default model; downloaded once into the user's own store."""
    pulled = llmrun("pull", "smollm2", "-q")
    if pulled.returncode:
        raise RuntimeError(f"pull failed ({pulled.returncode}): {pulled.stderr}")
    shown = llmrun("show", "smollm2", "--files", "--json")
    files = json.loads(shown.stdout)["files"]
    return Path(next(f["path"] for f in files if f["role"] == "weights"))
