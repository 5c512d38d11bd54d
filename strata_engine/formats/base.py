"""What a weight file is to the rest of the engine: named tensors whose bytes are mapped, and metadata. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class TensorMeta:
    """One stored tensor. `shape` is the logical (torch) shape, rows first; `offset`, `nbytes` are in `path`."""

    name: str
    shape: tuple[int, ...]
    type: str  # storage type name: F32, BF16, Q4_K, ... (GGUF spelling)
    path: Path
    offset: int
    nbytes: int


class WeightSource(Protocol):
    """An open checkpoint of one or more files. Nothing is read until asked."""

    kind: str  # "gguf" | "safetensors"
    paths: tuple[Path, ...]

    def metadata(self) -> Mapping[str, Any]:
        """GGUF: key -> value. safetensors: the content of the side files, by their stem.

        "config" and "generation_config" are those JSON files' objects ({} where absent).
        """
        ...

    def tensors(self) -> Mapping[str, TensorMeta]:
        """All tensors by checkpoint name."""
        ...

    def read(self, name: str) -> memoryview:
        """The tensor's bytes as a read-only view of the mapped file. Raises CorruptFile with path and offset."""
        ...

    def close(self) -> None: ...
