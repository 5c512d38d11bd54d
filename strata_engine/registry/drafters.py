"""The drafter that goes with a model: the one that was named, or the one the catalog pairs with it. No network.

A drafter that the catalog names and this disk lacks is said, with the command that fetches it; without `strict` the
model then decodes plainly.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from strata_engine.config import EngineConfig, SpecConfig
from strata_engine.errors import NotFound, UsageError
from strata_engine.registry.catalog import Catalog
from strata_engine.registry.entries import Drafter, Entry
from strata_engine.registry.files import ModelFiles
from strata_engine.registry.reference import parse
from strata_engine.registry.resolve import Missing, resolve
from strata_engine.registry.store import Store

WITH_FILES = ("dflash", "eagle3", "draft")  # methods whose drafter has weights of its own


def with_drafter(
    files: ModelFiles, config: EngineConfig, catalog: Catalog, store: Store
) -> tuple[ModelFiles, EngineConfig]:
    """The config with the drafter's path and depth in it, and notes about what is missing on the files.

    Raises NotFound for a named drafter that is not there, UsageError for a name that no method uses, and with `strict`
    NotFound for a paired one.
    """
    spec = config.spec
    if spec.method not in (*WITH_FILES, "auto"):
        if spec.draft is not None and spec.method != "none":
            raise UsageError(f"speculation by {spec.method} takes no drafter of its own, {spec.draft} was named",
                             f"--spec {' or '.join(WITH_FILES)} with --draft, or leave --draft out")  # fmt: skip
        return files, dataclasses.replace(config, spec=dataclasses.replace(spec, draft=None))
    if spec.draft is not None:
        return files, _using(config, _named(spec.draft, catalog, store), 0)
    entry = catalog.find(files.name)
    missing = ""
    for drafter in _paired(entry, spec.method, files.variant) if entry is not None else ():
        path = _on_disk(entry, drafter, catalog, store) if entry is not None else None
        if path is not None:
            return files, _using(config, path, drafter.n_max)
        missing = missing or f"{files.name}: its drafter {drafter.name} is not on this disk"
    return (files, config) if spec.method == "auto" else _without(files, config, missing)


def _without(files: ModelFiles, config: EngineConfig, missing: str) -> tuple[ModelFiles, EngineConfig]:
    method = config.spec.method
    text = missing or f"no drafter for {method} is known for {files.name}"
    hint = f"llmrun pull {files.name} --draft" if missing else "--draft MODEL"
    if config.spec.strict or not missing:
        raise NotFound(text, hint)
    note = f"{text}; decoding goes on without drafts ({hint})"
    return dataclasses.replace(files, notes=(*files.notes, note)), dataclasses.replace(config, spec=SpecConfig())


def _using(config: EngineConfig, path: Path, n_max: int) -> EngineConfig:
    depth = config.spec.n_max or n_max or None
    return dataclasses.replace(config, spec=dataclasses.replace(config.spec, draft=str(path), n_max=depth))


def _paired(entry: Entry, method: str, variant: str) -> list[Drafter]:
    """Drafters with files of their own that this variant may use; dflash2 counts as dflash."""
    fitting = [d for d in entry.drafters if not d.built_in and (not d.variants or variant in d.variants)]
    return [d for d in fitting if method == "auto" or d.name.startswith(method)]


def _named(text: str, catalog: Catalog, store: Store) -> Path:
    found = resolve(parse(text), catalog, store)
    if isinstance(found, Missing):
        raise NotFound(f"the drafter {found.name} is not on this disk", f"llmrun pull {text}")
    return _path(found)


def _on_disk(entry: Entry, drafter: Drafter, catalog: Catalog, store: Store) -> Path | None:
    for source in drafter.sources:
        if source.kind == "local" and source.path:
            return _named(str((entry.origin.parent / source.path).absolute()), catalog, store)
    try:
        found = resolve(parse(f"{entry.name}+{drafter.name}"), catalog, store)  # the name a pull with --draft gives it
    except NotFound:
        return None
    return None if isinstance(found, Missing) else _path(found)


def _path(files: ModelFiles) -> Path:
    return files.directory or files.role("weights")[0].path
