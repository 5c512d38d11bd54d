"""SafetensorsSource: a mapped checkpoint: a directory (config.json, weights, perhaps an index) or one file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from strata_engine.errors import CorruptFile, NotFound
from strata_engine.formats.base import TensorMeta
from strata_engine.formats.mapping import MappedFile
from strata_engine.formats.safetensors_header import SafetensorsHeader, parse_header

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
TOKENIZER_NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_MAX_JSON_BYTES = 64 << 20
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
_HINT = "Pull the model again; all files of a checkpoint must lie in one directory under their original names."


class SafetensorsSource:
    """An open safetensors checkpoint. `warnings`: oddities that do not keep it from being read.

    metadata() holds "config" and "generation_config" ({} where absent), "index" (the index's own metadata),
    "tokenizer_files" (file name -> path), and "quantize_config", "quant_config", "preprocessor_config" and
    "processor_config" where these files are there.
    """

    kind = "safetensors"

    def __init__(self, directory: Path, paths: Sequence[Path]) -> None:
        """Open weight files; side files are looked for in `directory`. Raises CorruptFile, NotFound, UsageError."""
        self.directory = directory
        with ExitStack() as opened:
            files = {path: opened.enter_context(closing(MappedFile(path))) for path in paths}
            headers = {path: parse_header(file.view, path) for path, file in files.items()}
            self._tensors = _joined(headers)
            self._metadata = _side_files(directory)
            opened.pop_all()
        self._files = files
        self.paths = tuple(paths)
        self.warnings = tuple(f"{path.name}: {w}" for path, header in headers.items() for w in header.warnings)

    @classmethod
    def open(cls, path: Path) -> SafetensorsSource:
        """A checkpoint directory, its index file, or one safetensors file. Raises CorruptFile, NotFound."""
        if path.is_dir():
            return cls._open_directory(path)
        if path.name.endswith(".index.json"):
            return cls._open_index(path)
        return cls(path.parent, [path])

    @classmethod
    def _open_directory(cls, directory: Path) -> SafetensorsSource:
        if (directory / INDEX_NAME).is_file():
            return cls._open_index(directory / INDEX_NAME)
        if (directory / SINGLE_NAME).is_file():
            return cls(directory, [directory / SINGLE_NAME])
        found = sorted(directory.glob("*.safetensors"))
        if not found:
            message = f"{directory} has no safetensors file ({SINGLE_NAME} or {INDEX_NAME})"
            raise NotFound(message, hint=_HINT)
        _check_part_names(found)
        return cls(directory, found)

    @classmethod
    def _open_index(cls, index: Path) -> SafetensorsSource:
        weight_map, total = read_index(index)
        names = sorted(set(weight_map.values()))
        missing = [name for name in names if not (index.parent / name).is_file()]
        if missing:
            message = f"{index}: {len(missing)} of {len(names)} files are missing: {', '.join(missing[:5])}"
            raise CorruptFile(message, hint=_HINT, details={"missing": missing})
        source = cls(index.parent, [index.parent / name for name in names])
        source._check_index(weight_map, index)
        source._metadata["index"] = total
        return source

    def _check_index(self, weight_map: Mapping[str, str], index: Path) -> None:
        for name, file in weight_map.items():
            meta = self._tensors.get(name)
            if meta is None or meta.path.name != file:
                self.close()
                message = f"{index} says tensor {name!r} is in {file}, but it is not there"
                raise CorruptFile(message, hint=_HINT, details={"tensor": name})

    def metadata(self) -> Mapping[str, Any]:
        """The side files' content (see the class)."""
        return self._metadata

    def tensors(self) -> Mapping[str, TensorMeta]:
        """All tensors by name. Types are the dtype names of the format."""
        return self._tensors

    def read(self, name: str) -> memoryview:
        """The tensor's bytes, read-only. Raises NotFound for an unknown name, ValueError after close."""
        meta = self._tensors.get(name)
        if meta is None:
            raise NotFound(f"{self.directory} has no tensor {name!r}", details={"tensor": name})
        return self._files[meta.path].part(meta.offset, meta.nbytes, f"tensor {name!r}")

    def close(self) -> None:
        """Give the mappings up; views handed out stay valid until they are dropped."""
        for file in self._files.values():
            file.close()


def read_index(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """(tensor name -> file name, the index's metadata). Raises CorruptFile, also for names that leave the directory."""
    content = read_json(path)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptFile(f"{path} has no weight_map", hint=_HINT)
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file or Path(file).name != file or "\0" in file:
            raise CorruptFile(f"{path}: tensor {name!r} names the bad file {file!r}", hint=_HINT)
    metadata = content.get("metadata")
    return weight_map, metadata if isinstance(metadata, dict) else {}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises CorruptFile, NotFound."""
    with closing(MappedFile(path)) as file:
        if file.size > _MAX_JSON_BYTES:
            raise CorruptFile(f"{path} has {file.size} bytes; {_MAX_JSON_BYTES} are allowed", hint=_HINT)
        raw = bytes(file.view)
    try:
        content = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path} is not valid JSON: {error}", hint=_HINT) from error
    if not isinstance(content, dict):
        raise CorruptFile(f"{path} is not a JSON object", hint=_HINT)
    return content


def _side_files(directory: Path) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for name in ("config", "generation_config"):
        path = directory / f"{name}.json"
        metadata[name] = read_json(path) if path.is_file() else {}
    # older GPTQ and AWQ files describe the quantisation there, models that see the preparation of images
    for name in ("quantize_config", "quant_config", "preprocessor_config", "processor_config"):
        path = directory / f"{name}.json"
        if path.is_file():
            metadata[name] = read_json(path)
    found = {name: directory / name for name in TOKENIZER_NAMES if (directory / name).is_file()}
    return metadata | {"tokenizer_files": found}


def _joined(headers: Mapping[Path, SafetensorsHeader]) -> dict[str, TensorMeta]:
    tensors: dict[str, TensorMeta] = {}
    for path, header in headers.items():
        for name, meta in header.tensors.items():
            if name in tensors:
                raise CorruptFile(
                    f"tensor {name!r} is in two files: {tensors[name].path.name} and {path.name}", hint=_HINT
                )
            tensors[name] = meta
    return tensors


def _check_part_names(found: Sequence[Path]) -> None:
    """Without an index the names must tell that all parts are there."""
    for path in found:
        match = _PART.fullmatch(path.name)
        if match is None:
            continue
        stem, count = match[1], match[3]
        names = [f"{stem}-{n:05d}-of-{count}.safetensors" for n in range(1, int(count) + 1)]
        missing = [name for name in names if not (path.parent / name).is_file()]
        if missing:
            message = f"{path.parent}: {len(missing)} of {len(names)} files are missing: {', '.join(missing[:5])}"
            raise CorruptFile(message, hint=_HINT, details={"missing": missing})
