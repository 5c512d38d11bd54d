"""open_weights: a path or the files of a model -> WeightSource, by what the files hold, not their names. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strata_engine.errors import CorruptFile, NotFound, UsageError
from strata_engine.formats.base import WeightSource
from strata_engine.formats.foreign import describe, is_gguf, is_safetensors
from strata_engine.formats.gguf import GgufSource
from strata_engine.formats.gguf_split import part_names
from strata_engine.formats.mapping import read_head
from strata_engine.formats.nested import flattened
from strata_engine.formats.safetensors import SafetensorsSource


def open_weights(paths: Path | str | Sequence[Path | str]) -> WeightSource:
    """Open a checkpoint: a directory, one file (further parts are found beside it), or all weight files.

    A decoder that its config nests beside an image tower is brought to the top (nested.py).
    Raises CorruptFile (6) for damaged or incomplete data, NotFound (3), UsageError (2) when unclear what is meant.
    """
    return flattened(_open(paths))


def _open(paths: Path | str | Sequence[Path | str]) -> WeightSource:
    given = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(path) for path in paths]
    if not given:
        raise UsageError("no weight file was given")
    if len(given) == 1 and given[0].is_dir():
        return _open_directory(given[0])
    kinds = {_kind(path) for path in given}
    if len(kinds) > 1:
        raise UsageError(f"weight files of different kinds were given: {', '.join(path.name for path in given)}")
    if kinds == {"gguf"}:
        return GgufSource(given)
    return SafetensorsSource.open(given[0]) if len(given) == 1 else SafetensorsSource(given[0].parent, given)


def _kind(path: Path) -> str:
    """ "gguf" or "safetensors" by the first bytes. Raises CorruptFile saying what the file is instead."""
    head, size = read_head(path)
    if is_gguf(head):
        return "gguf"
    if is_safetensors(head, size) or path.name.endswith((".safetensors", ".safetensors.index.json")):
        return "safetensors"
    what, hint = describe(head, size)
    raise CorruptFile(f"{path} is not a model file: it is {what}", hint=hint, details={"file": str(path)})


def _open_directory(directory: Path) -> WeightSource:
    if any(directory.glob("*.safetensors")) or any(directory.glob("*.safetensors.index.json")):
        return SafetensorsSource.open(directory)
    models = _gguf_models(directory)
    if len(models) == 1:
        return GgufSource(models)
    if not models:
        pickles = any(directory.glob("pytorch_model*.bin")) or any(directory.glob("*.pth"))
        hint = "Give a model file or directory."
        if pickles:
            hint = "It holds PyTorch pickles, which can run code and are not read: use the model's safetensors files."
        raise NotFound(f"{directory} holds neither safetensors nor GGUF files", hint=hint)
    names = ", ".join(model.name for model in models[:5])
    raise UsageError(f"{directory} holds {len(models)} GGUF models: {names}", hint="Give one of these files.")


def _gguf_models(directory: Path) -> list[Path]:
    """One path a model: of a split model the first part that is there."""
    seen: set[str] = set()
    models: list[Path] = []
    for path in sorted(directory.glob("*.gguf")):
        parts = part_names(path)
        first = parts[0].name if parts else path.name
        if first not in seen:
            seen.add(first)
            models.append(path)
    return models
