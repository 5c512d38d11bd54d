"""A server in a process of its own: started, waited for, stopped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(home: Path, **more: str) -> dict[str, str]:
    """Ours, with everything of the program below `home` and the source tree importable."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LLMRUN_")}
    path = os.pathsep.join(str(ROOT / part) for part in ("", "backends", "kernels"))
    return {**kept, "LLMRUN_HOME": str(home), "PYTHONPATH": path, **more}


@contextmanager
def server_process(home: Path, arguments: Sequence[str], **more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the URL of its ready line; killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=environment(home, **more), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"llmrun is ready on (\S+)", line)
        if found is None:
            process.kill()
            raise RuntimeError(f"no ready line: {line!r} {process.communicate()}")
        yield process, found[1]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
