"""A decoder's file and the file of its image projector (mmproj), as one source. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.formats.base import TensorMeta, WeightSource
from strata_engine.formats.open import open_weights

ARCHITECTURE = "clip"  # how projector files call themselves, whatever they hold


class ProjectedSource:
    """Tensors of both files; metadata of the decoder with the projector's `clip.` keys."""

    def __init__(self, decoder: WeightSource, projector: WeightSource) -> None:
        self._decoder, self._projector = decoder, projector
        self.kind, self.projector_path = decoder.kind, projector.paths[0] if projector.paths else None
        self.paths: tuple[Path, ...] = (*decoder.paths, *projector.paths)
        keys = {key: value for key, value in projector.metadata().items() if key.startswith("clip.")}
        self._metadata = {**keys, **decoder.metadata()}

    def metadata(self) -> Mapping[str, Any]:
        """Keys of both."""
        return self._metadata

    def tensors(self) -> Mapping[str, TensorMeta]:
        """Tensors of both."""
        return {**self._projector.tensors(), **self._decoder.tensors()}

    def read(self, name: str) -> memoryview:
        """The tensor's bytes, from the file that has it. Raises CorruptFile, NotFound as that file."""
        holder = self._decoder if name in self._decoder.tensors() else self._projector
        return holder.read(name)

    def close(self) -> None:
        """Close both."""
        self._decoder.close()
        self._projector.close()


def projector_of(source: WeightSource) -> Path | None:
    """The file of the image projector that was opened with a model."""
    return source.projector_path if isinstance(source, ProjectedSource) else None


def open_with_projector(paths: Path | Sequence[Path], projectors: Sequence[Path]) -> WeightSource:
    """A model's weights with the first of its image projectors, if any. Raises as open_weights and with_projector."""
    source = open_weights(paths)
    if not projectors:
        return source
    try:
        return with_projector(source, open_weights(projectors[0]))
    except BaseException:
        source.close()
        raise


def with_projector(decoder: WeightSource, projector: WeightSource) -> WeightSource:
    """Both as one. Raises UsageError (the decoder is no GGUF file), CorruptFile (the other is no projector)."""
    try:
        path = projector.paths[0] if projector.paths else projector.kind
        if projector.kind != "gguf" or projector.metadata().get("general.architecture") != ARCHITECTURE:
            raise CorruptFile(f"{path} is not an image projector", hint="such files are called mmproj-*.gguf")
        if decoder.kind != "gguf":
            raise UsageError(f"{path}: an image projector goes with a GGUF model, not with safetensors files")
        return ProjectedSource(decoder, projector)
    except BaseException:
        projector.close()
        raise
