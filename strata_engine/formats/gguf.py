"""GgufSource: a GGUF model of one or more mapped files. Only headers are read until a tensor is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from strata_engine.errors import NotFound
from strata_engine.formats.base import TensorMeta
from strata_engine.formats.gguf_header import GgufHeader, parse_header
from strata_engine.formats.gguf_split import find_parts, order_parts
from strata_engine.formats.mapping import MappedFile


class GgufSource:
    """An open GGUF model. `warnings`: oddities that do not keep it from being read."""

    kind = "gguf"

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open all parts of a model, or one: the others are found beside it. Raises CorruptFile, NotFound."""
        with ExitStack() as opened:
            files = {path: opened.enter_context(closing(MappedFile(path))) for path in paths}
            headers = {path: parse_header(file.view, path) for path, file in files.items()}
            if len(files) == 1:
                for part in find_parts(paths[0], headers[paths[0]]):
                    if part not in files:
                        files[part] = opened.enter_context(closing(MappedFile(part)))
                        headers[part] = parse_header(files[part].view, part)
            ordered = order_parts(list(headers.items()))
            opened.pop_all()
        self._files = files
        self.paths = tuple(path for path, _ in ordered)
        self._tensors = {name: meta for _, header in ordered for name, meta in header.tensors.items()}
        self._metadata = _merged([header for _, header in ordered])
        self.version = ordered[0][1].version
        self.warnings = tuple(warning for _, header in ordered for warning in header.warnings)

    def metadata(self) -> Mapping[str, Any]:
        """Key -> value; of a split model all parts together, the first one winning."""
        return self._metadata

    def tensors(self) -> Mapping[str, TensorMeta]:
        """All tensors by name, in file order."""
        return self._tensors

    def read(self, name: str) -> memoryview:
        """The tensor's bytes, read-only. Raises NotFound for an unknown name, ValueError after close."""
        meta = self._tensors.get(name)
        if meta is None:
            raise NotFound(f"{self.paths[0]} has no tensor {name!r}", details={"tensor": name})
        return self._files[meta.path].part(meta.offset, meta.nbytes, f"tensor {name!r}")

    def close(self) -> None:
        """Give the mappings up; views handed out stay valid until they are dropped."""
        for file in self._files.values():
            file.close()


def _merged(headers: Sequence[GgufHeader]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for header in reversed(headers):
        merged |= header.metadata
    return merged
