"""One lock a file, held by the kernel for a process: it ends with the process, so a killed owner blocks nobody.

The lock file names its owner (pid, host) for people; a file left by a dead owner is simply taken over.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from strata_engine.errors import LlmrunError

_BUSY = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


@dataclass(frozen=True)
class Owner:
    """Who holds a lock; pid 0 when the file does not say."""

    pid: int = 0
    host: str = ""


@contextmanager
def hold(path: Path, waiting: Callable[[Owner], None] | None = None, poll_s: float = 0.2) -> Iterator[None]:
    """Hold the lock at `path`; `waiting` is called at each poll while another process has it.

    Raises LlmrunError where the file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    pause = Event()
    while (handle := _take(path)) is None:
        if waiting is not None:
            waiting(owner(path))
        pause.wait(poll_s)
    try:
        yield
    finally:
        _release(path, handle)


def is_held(path: Path) -> bool:
    """Whether another process (or thread) holds the lock now."""
    try:
        handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _lock(handle, path)
    finally:
        os.close(handle)


def owner(path: Path) -> Owner:
    """The owner written in a lock file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return Owner(int(value["pid"]), str(value["host"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Owner()


def _take(path: Path) -> int | None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _lock(handle, path) or not _same_file(handle, path):
            os.close(handle)
            return None
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
    except OSError:
        os.close(handle)
        raise
    return handle


def _lock(handle: int, path: Path) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise LlmrunError(f"cannot lock {path}: {error.strerror}", "set LLMRUN_CACHE to a local disk") from error
    return True


def _same_file(handle: int, path: Path) -> bool:
    # The last owner removes the file while it holds the lock; a handle to the removed file locks nothing.
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _release(path: Path, handle: int) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
    os.close(handle)
