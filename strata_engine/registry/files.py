"""What the registry hands to the engine: the files of one model on this disk. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LocalFile:
    """One file on disk. `sha256` is "" when never computed.

    `role`: weights | mmproj | tokenizer | template | config | draft.
    """

    path: Path
    name: str  # file name in its source
    role: str
    size: int
    sha256: str = ""


@dataclass(frozen=True)
class ModelFiles:
    """A model that is wholly present.

    name        what the user calls it (catalog name, alias, or file stem)
    reference   normalised reference text, e.g. "smollm2:q4_1"
    root        source repository, URL or path, for `/v1/models`
    directory   for checkpoints that are directories (safetensors with config.json, tokenizer.json); else None
    defaults    catalog sampling and context defaults (ctx, temperature, top_p, top_k, min_p, thinking, stop)
    chat        catalog chat rules (template, tool_parser, reasoning_parser)
    notes       what the user should know about the choice made (a warning each)
    """

    name: str
    reference: str
    root: str
    files: tuple[LocalFile, ...]
    directory: Path | None = None
    variant: str = ""
    defaults: dict[str, Any] = field(default_factory=dict)
    chat: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def role(self, role: str) -> tuple[LocalFile, ...]:
        """Files of one role, in order (shards ascending)."""
        return tuple(f for f in self.files if f.role == role)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(f.size for f in self.files)
