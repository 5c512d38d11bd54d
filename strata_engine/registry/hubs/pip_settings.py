"""Which package index pip is set to use: asked of pip itself, so that its files, environment and default all count."""

from __future__ import annotations

import glob
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from strata_engine.errors import NetworkError

# Runs in a process of its own: pip's parser merges its config files, PIP_* variables and built-in default index.
_ASK = """
import json, sys
sys.path[:0] = sys.argv[1:]
from pip._internal.commands import create_command
options, _ = create_command("download").parse_args([])
index = [] if options.no_index else [options.index_url, *options.extra_index_urls]
print(json.dumps({"indexes": [i for i in index if i], "find_links": options.find_links, "cert": options.cert or ""}))
"""


@dataclass(frozen=True)
class PipSettings:
    """Index addresses in order, places of loose files, and a certificate file ("" = none)."""

    indexes: tuple[str, ...]
    find_links: tuple[str, ...]
    cert: str = ""


def pip_settings(python: str = sys.executable) -> PipSettings:
    """pip's settings, from this Python's pip or the one bundled with Python. Raises NetworkError when there is none."""
    bundled = sorted(glob.glob(str(Path(_ensurepip_folder()) / "pip-*.whl"))) if _ensurepip_folder() else []
    faults: list[str] = []
    for extra in ([], bundled[-1:]):
        try:
            done = subprocess.run([python, "-c", _ASK, *extra], capture_output=True, text=True, timeout=60, check=True)
            found = json.loads(done.stdout.strip().splitlines()[-1])
            return PipSettings(tuple(found["indexes"]), tuple(found["find_links"]), found["cert"])
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, IndexError) as error:
            faults.append(str(error))
    raise NetworkError("the package index is not known: this Python has no pip to ask", "python -m ensurepip",
                       {"faults": faults})  # fmt: skip


def _ensurepip_folder() -> str:
    try:
        import ensurepip
    except ImportError:
        return ""
    return str(Path(ensurepip.__file__).parent / "_bundled")
