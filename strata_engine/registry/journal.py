"""An unfinished file and the record of which of its bytes are good: X.part beside X.part.json.

Bytes are synced before the record that names them is written, so the record never promises more than the disk holds.
A part without a record, a record without a part, and a part longer than announced are dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from strata_engine.registry import atomic
from strata_engine.registry.ranges import Ranges

_VERSION = 1


@dataclass(frozen=True)
class Origin:
    """What the bytes belong to. `identity`: the server's word for this version of the file ("" when it gives none)."""

    url: str
    identity: str = ""
    size: int = 0  # 0 = not known
    sha256: str = ""

    def continues(self, old: Origin) -> bool:
        """Whether bytes fetched from `old` may be kept."""
        if self.size != old.size or self.sha256 != old.sha256:
            return False
        if without_secrets(self.url) != old.url:  # another mirror: only the expected hash ties the two together
            return bool(self.sha256)
        return self.identity == old.identity and bool(self.identity or self.sha256)


class Part:
    """The unfinished file, open for writing at any position from several threads."""

    def __init__(self, path: Path, origin: Origin) -> None:
        self.path, self.origin = path, origin
        self.ranges = Ranges()
        self._lock = threading.Lock()
        self._handle = -1

    def open(self) -> None:
        """Take up an earlier attempt where that is safe, else begin anew. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        old = read_record(self.path)
        keep = old is not None and self.origin.continues(old[0])
        if keep and old is not None:
            self.ranges = Ranges(old[1])
        else:
            discard(self.path)
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        self.save()

    def write(self, position: int, data: bytes) -> None:
        """Put bytes at a position and count them as good. Raises OSError."""
        view, at = memoryview(data), position
        while view:
            written = self._put(view, at)
            view, at = view[written:], at + written
        with self._lock:
            self.ranges.add(position, at)

    def _put(self, view: memoryview, position: int) -> int:
        if hasattr(os, "pwrite"):
            return os.pwrite(self._handle, view, position)
        with self._lock:
            os.lseek(self._handle, position, os.SEEK_SET)
            return os.write(self._handle, view)

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """The gaps inside [start, end)."""
        with self._lock:
            return self.ranges.missing(start, end)

    @property
    def done_bytes(self) -> int:
        """Good bytes so far."""
        with self._lock:
            return self.ranges.total

    def restart(self) -> None:
        """Forget all bytes."""
        with self._lock:
            self.ranges = Ranges()
        os.ftruncate(self._handle, 0)
        self.save()

    def save(self) -> None:
        """Write the record of what is on the disk now. Raises OSError (the older record then stays, and is true)."""
        with self._lock:
            pairs = self.ranges.pairs()
        os.fsync(self._handle)
        origin = {"url": without_secrets(self.origin.url), "identity": self.origin.identity,
                  "size": self.origin.size, "sha256": self.origin.sha256}  # fmt: skip
        atomic.write_json(record_path(self.path), {"version": _VERSION, **origin, "ranges": pairs, "pid": os.getpid()})

    def close(self) -> None:
        """Close the file, keeping part and record."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def record_path(part: Path) -> Path:
    """The record beside a part."""
    return part.with_name(part.name + ".json")


def read_record(part: Path) -> tuple[Origin, list[tuple[int, int]]] | None:
    """Origin and good ranges of a part; None when part and record do not make sense together."""
    try:
        value = json.loads(record_path(part).read_text(encoding="utf-8"))
        length = part.stat().st_size
        origin = Origin(value["url"], value["identity"], int(value["size"]), value["sha256"])
        pairs = [(int(a), int(b)) for a, b in value["ranges"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    limit = min(length, origin.size or length)
    longer = bool(origin.size) and length > origin.size
    if value.get("version") != _VERSION or longer or any(not 0 <= a < b <= limit for a, b in pairs):
        return None
    return origin, pairs


def good_bytes(part: Path) -> int:
    """How much of an unfinished download is kept."""
    found = read_record(part)
    return Ranges(found[1]).total if found else 0


def discard(part: Path) -> None:
    """Remove a part and its record; the record first, so that no record outlives its bytes."""
    for path in (record_path(part), part):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def without_secrets(url: str) -> str:
    """A URL as it may be stored and shown."""
    # Signed links carry a key in the query, and an index may carry a password; neither belongs on the disk.
    parts = urlsplit(url)
    host = parts.netloc.rsplit("@", 1)[-1]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
