"""The schema of models.yaml: nodes -> typed fields of an entry.

Unknown keys warn, wrong types fail, both with file and line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from strata_engine.registry.entries import ROLES, CatalogFile, Drafter, Source, Variant
from strata_engine.registry.yaml_nodes import Node

Read = Callable[[Node, str], Any]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


class EntryReader:
    """Reads entries; collects warnings about unknown keys."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def entry(self, node: Node) -> dict[str, Any]:
        """The fields that an entry gives, typed. Raises UsageError."""
        fields = self._fields(node, "an entry", {
            "name": _name, "title": Node.text, "family": Node.text, "license": Node.text,
            "aliases": lambda n, w: n.one_or_many(w, _name), "default": Node.flag,
            "source": self._sources, "sources": self._sources, "files": self._files,
            "variants": self._variants, "drafters": self._drafters, "defaults": self._defaults, "chat": self._chat,
            "parameters": Node.integer, "replaces": Node.text, "added": Node.text,
        })  # fmt: skip
        if "name" not in fields:
            raise node.place.fault("an entry without a name", "every entry needs a name")
        return _one_source_key(fields, node)

    def _fields(self, node: Node, what: str, known: dict[str, Read]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.pairs(what):
            if key in known:
                found[key] = known[key](value, key)
            else:
                self._unknown(value, key, what)
        return found

    def _unknown(self, node: Node, key: str, what: str) -> None:
        self.warnings.append(f"{node.file}, line {node.place.line}: unknown key {key!r} in {what} is ignored")

    def _sources(self, node: Node, what: str) -> tuple[Source, ...]:
        return node.one_or_many(what, self._source)

    def _source(self, node: Node, what: str) -> Source:
        fields = self._fields(node, what, {
            "hub": _choice("huggingface", "modelscope"), "repo": _repo, "revision": Node.text, "url": _url,
            "index": self._index, "local": Node.flag, "path": Node.text, "note": Node.text,
        })  # fmt: skip
        note = fields.get("note", "")
        if "index" in fields:
            return Source("index", **fields["index"], note=note)
        if "url" in fields:
            return Source("url", url=fields["url"], note=note)
        if fields.get("local") or "path" in fields:
            return Source("local", path=fields.get("path", ""), note=note)
        if "repo" not in fields:
            raise node.place.fault(f"{what} names neither repo, url, index nor local")
        return Source(fields.get("hub", "huggingface"), fields["repo"], fields.get("revision", ""), note=note)

    def _index(self, node: Node, what: str) -> dict[str, str]:
        fields = self._fields(node, what, {"package": Node.text, "version": Node.text, "member": Node.text})
        missing = [k for k in ("package", "version", "member") if not fields.get(k)]
        if missing:
            raise node.place.fault(f"{what} lacks {' and '.join(missing)}")
        return fields

    def _files(self, node: Node, what: str) -> tuple[CatalogFile, ...]:
        return node.one_or_many(what, self._file)

    def _file(self, node: Node, what: str) -> CatalogFile:
        if not node.is_mapping():
            return CatalogFile(_path(node, what))
        fields = self._fields(node, what, {
            "path": _path, "size": Node.size, "sha256": _sha256, "role": _choice(*ROLES),
        })  # fmt: skip
        if "path" not in fields:
            raise node.place.fault(f"an element of {what} without a path")
        return CatalogFile(**fields)

    def _variants(self, node: Node, what: str) -> tuple[Variant, ...]:
        return tuple(self._variant(name, value) for name, value in node.pairs(what))

    def _variant(self, name: str, node: Node) -> Variant:
        if not re.fullmatch(r"[A-Za-z0-9._+-]+", name):
            raise node.place.fault(f"not a name of a variant: {name!r}")
        fields = self._fields(node, f"variant {name}", {
            "files": self._files, "source": self._sources, "sources": self._sources, "quant": Node.text,
            "bpw": Node.number, "weights": Node.size, "min_memory": Node.size, "note": Node.text,
        })  # fmt: skip
        fields = _one_source_key(fields, node)
        for short in ("weights", "min_memory"):
            if short in fields:
                fields[f"{short}_bytes"] = fields.pop(short)
        return Variant(name, **fields)

    def _drafters(self, node: Node, what: str) -> tuple[Drafter, ...]:
        return tuple(self._drafter(name, value) for name, value in node.pairs(what))

    def _drafter(self, name: str, node: Node) -> Drafter:
        fields = self._fields(node, f"drafter {name}", {
            "source": self._sources, "sources": self._sources, "files": self._files, "n_max": Node.integer,
            "built_in": Node.flag, "variants": _texts, "note": Node.text,
        })  # fmt: skip
        return Drafter(name, **_one_source_key(fields, node))

    def _defaults(self, node: Node, what: str) -> dict[str, Any]:
        return self._fields(node, what, {
            "ctx": Node.integer, "temperature": Node.number, "top_p": Node.number, "top_k": Node.integer,
            "min_p": Node.number, "presence_penalty": Node.number, "repeat_penalty": Node.number,
            "thinking": Node.flag, "stop": _texts,
        })  # fmt: skip

    def _chat(self, node: Node, what: str) -> dict[str, Any]:
        return self._fields(node, what, {
            "template": Node.text, "tool_parser": Node.text, "reasoning_parser": Node.text, "system": Node.text,
        })  # fmt: skip


def _one_source_key(fields: dict[str, Any], node: Node) -> dict[str, Any]:
    if "source" in fields and "sources" in fields:
        raise node.place.fault("both source and sources are given", "keep one")
    if "source" in fields:
        fields["sources"] = fields.pop("source")
    return fields


def _texts(node: Node, what: str) -> tuple[str, ...]:
    return node.one_or_many(what, Node.text)


def _name(node: Node, what: str) -> str:
    text = node.text(what)
    if not _NAME.fullmatch(text):
        hint = "letters, digits and . _ + - ; what follows a colon is a variant" if ":" in text else ""
        raise node.place.fault(f"not a {'name' if what == 'name' else 'valid ' + what} of a model: {text!r}", hint)
    return text


def _sha256(node: Node, what: str) -> str:
    text = node.text(what)
    if not _SHA256.fullmatch(text):
        raise node.place.fault(f"{what} must be 64 hex digits, not {text!r}")
    return text.lower()


def _repo(node: Node, what: str) -> str:
    text = node.text(what)
    if not _REPO.fullmatch(text):
        raise node.place.fault(f"{what} must be user/repository, not {text!r}")
    return text


def _url(node: Node, what: str) -> str:
    text = node.text(what)
    if not text.startswith(("https://", "http://")):
        raise node.place.fault(f"{what} must begin with https://, not {text!r}")
    return text


def _path(node: Node, what: str) -> str:
    text = node.text(what)
    if not text or text.startswith("/") or any(p in ("", ".", "..") for p in text.split("/")):
        raise node.place.fault(f"{what}: not a path inside a source: {text!r}")
    return text


def _choice(*allowed: str) -> Read:
    def read(node: Node, what: str) -> str:
        text = node.text(what)
        if text not in allowed:
            raise node.place.fault(f"{what} must be one of {', '.join(allowed)}, not {text!r}")
        return text

    return read
