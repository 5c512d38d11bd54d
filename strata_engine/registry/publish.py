"""From a complete part to a blob: looked at, hashed as a whole, and only then given its final name."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from strata_engine.errors import CorruptFile, HashMismatch
from strata_engine.formats.foreign import HEAD_BYTES, describe, is_gguf, is_safetensors
from strata_engine.registry import atomic

_BLOCK = 4 << 20
_OF_NOTHING = hashlib.sha256(b"").hexdigest()


def sha256_of(path: Path, tick: Callable[[int], None] = lambda _done: None) -> str:
    """sha256 of a file's content. Raises OSError."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            done += len(block)
            tick(done)
    return digest.hexdigest()


def check_kind(path: Path, name: str) -> None:
    """Whether the first bytes are what the name says. Raises CorruptFile saying what they are instead."""
    with path.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    size = path.stat().st_size
    lower = name.lower()
    good = is_gguf(head) if lower.endswith(".gguf") else True
    good = is_safetensors(head, size) if lower.endswith(".safetensors") else good
    if not good:
        what, hint = describe(head, size)
        raise CorruptFile(f"{name} came as {what}", hint, {"file": name, "size_bytes": size})


def check_hash(name: str, got: str, expected: str, size: int) -> None:
    """Raises HashMismatch that says both hashes, and when nothing at all was received."""
    if not expected or got == expected:
        return
    what = "nothing was received" if got == _OF_NOTHING else f"{size} bytes have sha256 {got}"
    raise HashMismatch(f"{name}: {what}, expected {expected}", "try again, or another source",
                       {"file": name, "expected": expected, "got": got, "size_bytes": size})  # fmt: skip


def publish(part: Path, blob: Path) -> None:
    """Move a checked file to its final name in one step, also from another file system. Raises OSError."""
    blob.parent.mkdir(parents=True, exist_ok=True)
    with part.open("rb+") as stream:
        os.fsync(stream.fileno())
    os.chmod(part, 0o444)
    try:
        os.replace(part, blob)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(part, blob)
        part.unlink()
    atomic.sync_directory(blob.parent)


def _copy(part: Path, blob: Path) -> None:
    beside = blob.with_name(f".{blob.name}.{os.getpid()}.tmp")
    try:
        with part.open("rb") as source, beside.open("wb") as target:
            shutil.copyfileobj(source, target, _BLOCK)
            target.flush()
            os.fsync(target.fileno())
        os.chmod(beside, 0o444)
        os.replace(beside, blob)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
