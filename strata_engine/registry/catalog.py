"""The known models: the packaged models.yaml, then the user's, then files named on the command line, merged by name.

A later file changes only the fields it gives. Errors name file and line; unknown keys are collected as warnings.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from strata_engine.errors import UsageError
from strata_engine.registry.entries import Entry, Source, Variant
from strata_engine.registry.entry_reader import EntryReader
from strata_engine.registry.yaml_nodes import Node, read_nodes

_MERGED_BY_KEY = ("defaults", "chat")


class Catalog:
    """Entries by name. `warnings`: what was ignored while reading."""

    def __init__(self, entries: Iterable[Entry], warnings: Sequence[str] = ()) -> None:
        self.entries = {e.name: e for e in entries}
        self.warnings = tuple(warnings)
        self._by_name = {name.lower(): e for e in self.entries.values() for name in e.names}

    def find(self, name: str) -> Entry | None:
        """The entry of a name or alias, in any case."""
        return self._by_name.get(name.lower())

    @property
    def default(self) -> Entry | None:
        """The entry for commands that name no model."""
        return next((e for e in self.entries.values() if e.default), None)

    def names(self) -> list[str]:
        """All names and aliases."""
        return [n for e in self.entries.values() for n in e.names]


def packaged_file() -> Path:
    """models.yaml beside this module in an installed package, else the one at the top of the checkout."""
    beside = Path(__file__).parent / "models.yaml"
    return beside if beside.is_file() else Path(__file__).resolve().parents[2] / "models.yaml"


def load_catalog(files: Sequence[Path] = (), packaged: Path | None = None) -> Catalog:
    """Catalog of the packaged file and `files`, strongest first. Raises UsageError naming file and line."""
    base = packaged or packaged_file()
    reader = EntryReader()
    merged: dict[str, dict[str, Any]] = {}
    for file in (base, *reversed(files)):
        given = _read_file(file, reader)
        if any(fields.get("default") for fields in given.values()):
            for fields in merged.values():
                fields.pop("default", None)
        for name, fields in given.items():
            merged[name] = _merge(merged.get(name, {}), {**fields, "origin": file, "packaged": file == base})
    entries = [_build(fields) for fields in merged.values()]
    _check_names(entries)
    return Catalog(entries, reader.warnings)


def near_names(name: str, known: Iterable[str], count: int = 5) -> list[str]:
    """Up to `count` known names close to `name`: beginnings first, then similar spellings."""
    wanted = name.lower()
    unique = list(dict.fromkeys(known))
    begins = [k for k in unique if len(wanted) > 1 and k.lower().startswith(wanted)]
    by_lower = {k.lower(): k for k in unique}
    similar = [by_lower[k] for k in difflib.get_close_matches(wanted, list(by_lower), count, 0.6)]
    return list(dict.fromkeys([*begins, *similar]))[:count]


def _read_file(file: Path, reader: EntryReader) -> dict[str, dict[str, Any]]:
    try:
        root = read_nodes(file)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from error
    found: dict[str, dict[str, Any]] = {}
    lines: dict[str, int] = {}
    for node in _entry_nodes(root, file):
        fields = reader.entry(node)
        name = fields["name"]
        if name in found:
            raise node.place.fault(f"a second entry named {name} (first on line {lines[name]})", "rename or drop one")
        if fields.get("default") and any(f.get("default") for f in found.values()):
            raise node.place.fault("a second entry with default: true", "keep one default")
        found[name], lines[name] = fields, node.place.line
    return found


def _entry_nodes(root: Node | None, file: Path) -> list[Node]:
    if root is None:
        return []
    entries: list[Node] = []
    for key, value in root.pairs(f"{file.name}"):
        if key != "models":
            raise value.place.fault(f"unknown key {key!r}", "the file holds one key, models: with a list of entries")
        entries = value.items("models")
    return entries


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    both = {**old, **new}
    for key in _MERGED_BY_KEY:
        if key in old and key in new:
            both[key] = {**old[key], **new[key]}
    return both


def _build(fields: dict[str, Any]) -> Entry:
    fields = dict(fields)
    sources: tuple[Source, ...] = fields.pop("sources", ())
    files = fields.pop("files", ())
    variants: tuple[Variant, ...] = fields.pop("variants", ()) or (Variant("default", files),)
    complete = tuple(
        Variant(**{**vars(v), "files": v.files or files, "sources": v.sources or sources}) for v in variants
    )
    for variant in complete:
        if not variant.sources:
            raise UsageError(f"{fields['origin']}: {fields['name']}:{variant.name} has no source",
                             "give source: {hub, repo}, {url}, {index} or {local: true}")  # fmt: skip
    return Entry(variants=complete, **fields)


def _check_names(entries: Sequence[Entry]) -> None:
    owner: dict[str, Entry] = {}
    for entry in entries:
        for name in entry.names:
            other = owner.setdefault(name.lower(), entry)
            if other is not entry:
                raise UsageError(
                    f"{entry.origin}: {name} is a name of both {other.name} and {entry.name}", "rename one"
                )
