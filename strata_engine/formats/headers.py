"""Heads of model files without opening a model: what kind a file is and what its checked header says. No torch.

For listing and showing: `llmrun show`, `fit` and the registry read these; the engine uses open.open_weights.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from strata_engine.errors import CorruptFile
from strata_engine.formats.foreign import describe, is_gguf, is_safetensors
from strata_engine.formats.gguf_header import GgufHeader
from strata_engine.formats.gguf_header import parse_header as parse_gguf
from strata_engine.formats.mapping import MappedFile, read_head
from strata_engine.formats.safetensors_header import SafetensorsHeader
from strata_engine.formats.safetensors_header import parse_header as parse_safetensors


def read_gguf_header(path: Path, need_tensors: bool = True) -> GgufHeader:
    """The checked header of one GGUF file. Raises CorruptFile, NotFound, UsageError.

    `need_tensors` False accepts a file that holds only a vocabulary.
    """
    with closing(MappedFile(path)) as file:
        return parse_gguf(file.view, path, need_tensors)


def read_safetensors_header(path: Path) -> SafetensorsHeader:
    """The checked header of one safetensors file. Raises CorruptFile, NotFound, UsageError."""
    with closing(MappedFile(path)) as file:
        return parse_safetensors(file.view, path)


def read_header(path: Path) -> GgufHeader | SafetensorsHeader:
    """The checked header of a model file of either kind. Raises CorruptFile saying what the file is instead."""
    head, size = read_head(path)
    if is_gguf(head):
        return read_gguf_header(path)
    if is_safetensors(head, size) or path.suffix == ".safetensors":
        return read_safetensors_header(path)
    what, hint = describe(head, size)
    raise CorruptFile(f"{path} is not a model file: it is {what}", hint=hint, details={"file": str(path)})
