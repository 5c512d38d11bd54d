"""Files that are either whole or absent: written beside their place, synced, then renamed."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_bytes(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace `path` in one step. Makes the directory. Raises OSError; then the old file is still there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    finally:  # after the rename there is nothing left to remove
        with contextlib.suppress(OSError):
            os.unlink(name)


def write_json(path: Path, value: Any) -> None:
    """`write_bytes` of a JSON document."""
    write_bytes(path, (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode())


def sync_directory(path: Path) -> None:
    """Make a rename in this directory last through a power cut, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse to sync a directory
            os.fsync(handle)
    finally:
        os.close(handle)
