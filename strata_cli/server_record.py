"""server.json: where the running server is. Written by serve (mode 0600), read by clients, removed at exit."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from strata_cli.address import Address
from strata_engine.registry.atomic import write_bytes


@dataclass(frozen=True)
class ServerRecord:
    """One running server. `unix`: socket path, "" when it listens on TCP."""

    pid: int
    host: str
    port: int
    scheme: str = "http"
    prefix: str = ""
    unix: str = ""

    @property
    def address(self) -> Address:
        """Where to connect (without meaning when `unix` is set)."""
        return Address(self.host, self.port, self.scheme, self.prefix)


def write_record(path: Path, record: ServerRecord) -> None:
    """Replace the file in one step; readable by its owner only. Raises OSError, and leaves nothing half-written."""
    write_bytes(path, json.dumps(asdict(record)).encode(), 0o600)


def read_record(path: Path) -> ServerRecord | None:
    """The record of a server whose process lives; None for no file, a broken one or a dead process."""
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        record = ServerRecord(**value)
    except (OSError, ValueError, TypeError):
        return None
    return record if _alive(record.pid) else None


def remove_record(path: Path, pid: int) -> None:
    """Remove the file if it is still ours."""
    record = read_record(path)
    if record is not None and record.pid == pid:
        path.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    import psutil

    return isinstance(pid, int) and pid > 0 and psutil.pid_exists(pid)
