"""The record of one downloaded model: written last, so it means that every file was checked and is in place."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

SCHEMA = "llmrun.manifest.v1"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ManifestFile:
    """One file. `path` is set for a file that stays in another program's cache; else it is the blob of `sha256`."""

    name: str
    role: str
    size: int
    sha256: str
    path: str = ""


@dataclass(frozen=True)
class Manifest:
    """`base` is the reference without variant, `reference` with it. `revision`: the commit the files came from.

    `directory`: a checkpoint that is read as a directory. `pulled_at`: seconds since 1970.
    """

    reference: str
    base: str
    variant: str
    name: str
    root: str
    files: tuple[ManifestFile, ...]
    source: str = ""
    revision: str = ""
    directory: bool = False
    pulled_at: float = 0.0

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(f.size for f in self.files)

    @property
    def blobs(self) -> frozenset[str]:
        """sha256 of the files that lie in our own store."""
        return frozenset(f.sha256 for f in self.files if not f.path)

    @property
    def is_tree(self) -> bool:
        """The files are shown under their own names in a directory, as multi-file formats need."""
        return self.directory or len(self.files) > 1

    @property
    def key(self) -> str:
        """File-name-safe text, one for each reference."""
        return key_of(self.reference)


def key_of(reference: str) -> str:
    """File name of a reference; long ones are hashed."""
    text = quote(reference.lower(), safe="")
    return text if len(text) <= 120 else text[:60] + "-" + hashlib.sha256(text.encode()).hexdigest()[:24]


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The document that is stored."""
    return {"schema": SCHEMA, **asdict(manifest)}


def read(path: Path) -> Manifest | None:
    """The manifest in a file; None when it is damaged or of a later schema (the model then counts as absent)."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value.pop("schema") != SCHEMA:
            return None
        files = tuple(ManifestFile(**f) for f in value.pop("files"))
        if not files or any(not _SHA256.fullmatch(f.sha256) or f.size < 0 for f in files):
            return None
        return Manifest(files=files, **value)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
