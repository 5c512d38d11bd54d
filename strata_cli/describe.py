"""What a model is made of, for `show`: facts from the catalog and from the checked heads of its files. No torch."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from strata_cli.app import App
from strata_engine.units import format_bytes

if TYPE_CHECKING:
    from strata_engine.formats.base import TensorMeta, WeightSource
    from strata_engine.formats.quant.logical import LogicalWeight
    from strata_engine.registry.entries import Entry
    from strata_engine.registry.files import LocalFile, ModelFiles

_SHOWN_ITEMS, _SHOWN_CHARACTERS = 3, 200


class Description:
    """A model on this disk. Files are opened at the first question that needs them."""

    def __init__(self, app: App, files: ModelFiles) -> None:
        self.files = files
        self.entry: Entry | None = app.catalog.find(files.name)

    @cached_property
    def source(self) -> WeightSource:
        """The open weights. Raises CorruptFile."""
        from strata_engine.models.planned import open_or_plan

        return open_or_plan(self.files)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """GGUF keys, or the content of the JSON files of a checkpoint."""
        return dict(self.source.metadata())

    @cached_property
    def tensors(self) -> Mapping[str, TensorMeta]:
        """All tensors."""
        return self.source.tensors()

    def close(self) -> None:
        """Unmap the files."""
        if "source" in self.__dict__:
            self.source.close()

    # sections

    def overview(self) -> dict[str, Any]:
        """Name, origin, size and shape."""
        entry, files = self.entry, self.files
        facts = {
            "name": files.name, "title": entry.title if entry else self._general("name"), "reference": files.reference,
            "source": files.root, "variant": files.variant, "license": self.license(), "size_bytes": files.size_bytes,
            "n_files": len(files.files), "format": self.source.kind, **self._shape(),
            "parameters": self._parameters(),
            "tensor_types": dict(Counter(t.type for t in self.tensors.values()).most_common()),
            "has_template": bool(self.template()),
        }  # fmt: skip
        return {k: v for k, v in facts.items() if v not in ("", None)}

    def _parameters(self) -> int:
        """Elements of all weights; a quantised matrix counts as the matrix it stands for, where its layout is known."""
        from strata_engine.errors import LlmrunError
        from strata_engine.formats.quant.logical import logical_weights

        try:
            return sum(_elements(weight) for weight in logical_weights(self.source).values())
        except LlmrunError:
            return sum(_elements(t) for t in self.tensors.values())

    def _shape(self) -> dict[str, Any]:
        if self.source.kind == "gguf":
            arch = str(self.metadata.get("general.architecture", ""))
            keys = {"context_tokens": "context_length", "layers": "block_count", "width": "embedding_length"}
            return {"architecture": arch, **{k: self.metadata.get(f"{arch}.{v}") for k, v in keys.items()}}
        config = _mapping(self.metadata.get("config"))
        inner = {**config, **_mapping(config.get("text_config"))}
        keys = {"context_tokens": "max_position_embeddings", "layers": "num_hidden_layers", "width": "hidden_size"}
        return {"architecture": str(config.get("model_type", "")), **{k: inner.get(v) for k, v in keys.items()}}

    def license(self) -> str:
        """The catalog's word, else the file's own."""
        return (self.entry.license if self.entry else "") or self._general("license")

    def _general(self, key: str) -> str:
        value = self.metadata.get(f"general.{key}", "")
        return value if isinstance(value, str) else ""

    def license_text(self) -> str:
        """Everything the files say about the licence."""
        known = [self.license(), self._general("license.name"), self._general("license.link")]
        return "\n".join(dict.fromkeys(t for t in known if t)) or "not stated"

    def template(self) -> str:
        """The chat template's text; "" when there is none."""
        own = self.files.role("template")
        if own:
            text = own[0].path.read_text(encoding="utf-8", errors="replace")
            return str(_mapping(_json(text)).get("chat_template", "")) if own[0].name.endswith(".json") else text
        named = self.files.chat.get("template")
        if named:
            return str(named)
        if self.source.kind == "gguf":
            return str(self.metadata.get("tokenizer.chat_template", ""))
        config = next((f for f in self.files.files if f.name == "tokenizer_config.json"), None)
        found = _mapping(_json(config.path.read_text(encoding="utf-8", errors="replace"))) if config else {}
        value = found.get("chat_template", "")
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)

    def system(self) -> str:
        """The system text that the catalog gives; "" = none, the template may add its own."""
        return str(self.files.chat.get("system", ""))

    def parameters(self) -> dict[str, Any]:
        """Defaults for context, sampling and thinking."""
        return dict(self.files.defaults)

    def hashed_files(self) -> list[LocalFile]:
        """All files with their sha256: as known from the download, else computed now."""
        from strata_engine.registry.publish import sha256_of

        return [f if f.sha256 else dataclasses.replace(f, sha256=sha256_of(f.path)) for f in self.files.files]


def file_record(file: LocalFile) -> dict[str, Any]:
    """One file for machines, with its absolute path."""
    return {"path": str(file.path.absolute()), "name": file.name, "role": file.role, "size": file.size,
            "sha256": file.sha256}  # fmt: skip


def tensor_record(tensor: TensorMeta) -> dict[str, Any]:
    """One tensor for machines."""
    return {"name": tensor.name, "type": tensor.type, "shape": list(tensor.shape), "size": tensor.nbytes,
            "file": tensor.path.name, "offset": tensor.offset}  # fmt: skip


def short(value: Any) -> str:
    """A metadata value on one line: long lists and texts are cut, and it is said."""
    if isinstance(value, (list, tuple)):
        head = ", ".join(short(v) for v in value[:_SHOWN_ITEMS])
        return f"[{head}]" if len(value) <= _SHOWN_ITEMS else f"[{head}, ... {len(value)} in all]"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    text = str(value).replace("\n", "\\n")
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters)"


def plain(value: Any) -> Any:
    """A value that JSON can hold; long lists (vocabularies) become their length."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value] if len(value) <= 64 else {"n_items": len(value), "first": plain(value[0])}
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def lines_of(facts: Mapping[str, Any]) -> list[list[str]]:
    """Facts as two columns for people."""
    rows: list[list[str]] = []
    for key, value in facts.items():
        name, text = key.replace("_", " "), short(value)
        if key == "size_bytes":
            name, text = "size", format_bytes(value)
        elif key == "n_files":
            name = "files"
        elif key == "tensor_types":
            text = ", ".join(f"{count} {kind}" for kind, count in value.items())
        elif key == "aliases":
            text = ", ".join(value)
        elif isinstance(value, bool):
            text = "yes" if value else "no"
        elif isinstance(value, int):
            text = f"{value:,}"
        rows.append([name, text])
    return rows


def _elements(tensor: TensorMeta | LogicalWeight) -> int:
    count = 1
    for length in tensor.shape:
        count *= length
    return count


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
