"""A file mapped read-only, with the errors a user may see. No torch, no numpy."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from strata_engine.errors import CorruptFile, NotFound, UsageError
from strata_engine.formats.foreign import HEAD_BYTES


class MappedFile:
    """One mapped file. `view` is the whole of it; an empty file has an empty view."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = regular_file_size(path)
        self._map: mmap.mmap | None = None
        self._closed = False
        try:
            with path.open("rb") as file:
                # The size may have changed since: what is mapped is what counts from here on.
                self.size = os.fstat(file.fileno()).st_size
                if self.size:
                    self._map = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise _not_readable(path, error) from error
        self.view = memoryview(self._map) if self._map is not None else memoryview(b"")

    @property
    def head(self) -> bytes:
        """The first bytes, for recognising the kind of file."""
        return bytes(self.view[:HEAD_BYTES])

    def part(self, offset: int, nbytes: int, what: str) -> memoryview:
        """Read-only view of a byte range. Raises CorruptFile when it is not inside the file, ValueError after close."""
        if self._closed:
            raise ValueError(f"{self.path} is closed")
        if offset < 0 or nbytes < 0 or self.size - offset < nbytes:
            message = f"{self.path}: {what} needs {nbytes} bytes at offset {offset}, the file has {self.size} bytes"
            raise CorruptFile(message, details={"file": str(self.path), "offset": offset, "tensor": what})
        return self.view[offset : offset + nbytes]

    def close(self) -> None:
        """Give the mapping up. Views handed out stay valid: the memory goes when the last of them does."""
        self._closed = True
        self.view.release()
        if self._map is None:
            return
        try:
            self._map.close()
        except BufferError:  # tensors still look into it; it is unmapped when they are dropped
            pass
        self._map = None


def regular_file_size(path: Path) -> int:
    """Size in bytes. Raises NotFound, and UsageError for directories, pipes and devices (which may block for ever)."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise _not_readable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise UsageError(f"{path} is {kind}", hint="Give a model file.")
    return status.st_size


def read_head(path: Path) -> tuple[bytes, int]:
    """(first HEAD_BYTES bytes, size). Raises NotFound, UsageError."""
    size = regular_file_size(path)
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES), size
    except OSError as error:
        raise _not_readable(path, error) from error


def _not_readable(path: Path, error: OSError | ValueError) -> NotFound:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return NotFound(f"cannot open {path}: {reason}", hint="Check the path and its permissions.")
