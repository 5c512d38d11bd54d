"""Reference -> files on this disk, or what is missing. Never touches the network.

Order for a bare text: alias, catalog, downloaded model, path. `./name` forces the path.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from strata_engine.errors import NotFound, UsageError
from strata_engine.paths import expand
from strata_engine.registry.catalog import Catalog, near_names
from strata_engine.registry.entries import Entry, Source, Variant
from strata_engine.registry.files import LocalFile, ModelFiles
from strata_engine.registry.local import local_model
from strata_engine.registry.manifest import Manifest
from strata_engine.registry.reference import Reference, parse
from strata_engine.registry.selection import matches_quant
from strata_engine.registry.store import Store


@dataclass(frozen=True)
class Missing:
    """A model that is known (or addressed) but not wholly on this disk.

    `entry` and `variant` are set for catalog models; `note` says what a model without a public source needs.
    """

    reference: Reference
    entry: Entry | None = None
    variant: Variant | None = None
    note: str = ""

    @property
    def name(self) -> str:
        """What to call it in messages."""
        if self.entry and self.variant:
            return f"{self.entry.name}:{self.variant.name}"
        return self.reference.normal

    @property
    def local_only(self) -> bool:
        """No public source: the user must give a path."""
        return self.variant is not None and all(s.kind == "local" for s in self.variant.sources)

    @property
    def size_bytes(self) -> int:
        """About how much must be downloaded; 0 = not known."""
        return self.variant.weights_bytes if self.variant else 0


def resolve(reference: Reference, catalog: Catalog, store: Store) -> ModelFiles | Missing:
    """The model's files, or Missing. Raises NotFound with near names, UsageError, CorruptFile for missing shards."""
    return _Resolver(catalog, store).run(reference)


def pullable(reference: Reference, catalog: Catalog, store: Store) -> Missing | None:
    """What a pull of this reference fetches, downloaded or not; None for a path (nothing to fetch). Raises NotFound."""
    if reference.bare and reference.target in store.aliases():
        target = parse(store.aliases()[reference.target])
        resolve(reference, catalog, store)  # refuses a chain of aliases that leads back to itself
        variant, revision = reference.variant or target.variant, reference.revision or target.revision
        return pullable(dataclasses.replace(target, variant=variant, revision=revision), catalog, store)
    entry = catalog.find(reference.target) if reference.kind == "name" else None
    if entry is not None:
        variant = entry.variant(reference.variant)
        if variant is None:
            resolve(reference, catalog, store)
            return None
        if any(s.kind == "local" and s.path for s in variant.sources):
            return None
        return Missing(reference, entry, variant, "; ".join(s.note for s in variant.sources if s.kind == "local"))
    found = resolve(reference, catalog, store)
    if isinstance(found, Missing):
        return found
    is_path = found.root == found.reference
    return Missing(reference) if reference.kind == "hub" and not is_path else None


def not_registered(missing: Missing) -> NotFound:
    """The error for a model without a public source."""
    name = missing.entry.name if missing.entry else missing.name
    return NotFound(f"{missing.name} is not on this disk, and {missing.note or 'its files have no public source'}",
                    f"llmrun cp PATH {name}   (PATH: the checkpoint's directory or file)")  # fmt: skip


class _Resolver:
    def __init__(self, catalog: Catalog, store: Store) -> None:
        self.catalog, self.store = catalog, store

    def run(self, reference: Reference) -> ModelFiles | Missing:
        if reference.kind == "path":
            return local_model(reference.target)
        if reference.bare:
            found = self._alias(reference)
            if found is not None:
                return found
        if reference.kind == "name":
            return self._name(reference)
        found = self._downloaded(reference)
        if found is not None:
            return found
        if reference.bare and expand(reference.text.strip()).exists():
            return local_model(reference.text.strip())
        return Missing(reference)

    def _alias(self, reference: Reference) -> ModelFiles | Missing | None:
        aliases = self.store.aliases()
        seen: list[str] = []
        target, current = None, reference
        while current.bare and (name := current.target) in aliases:
            if name in seen:
                raise UsageError(f"alias {seen[0]} leads back to itself: {' -> '.join([*seen, name])}", "llmrun ls")
            seen.append(name)
            target = parse(aliases[name])
            current = dataclasses.replace(target, variant=reference.variant or target.variant)
        if target is None:
            return None
        found = _Resolver(self.catalog, _WithoutAliases(self.store)).run(current)
        return self._named(found, seen[0], reference) if isinstance(found, ModelFiles) else found

    def _named(self, found: ModelFiles, name: str, reference: Reference) -> ModelFiles:
        entry = self.catalog.find(name)
        rules = {"defaults": found.defaults, "chat": found.chat}
        if entry is not None:  # an alias that gives a catalog model its files keeps the catalog's rules
            rules = {"defaults": {**entry.defaults, **found.defaults}, "chat": {**entry.chat, **found.chat}}
        return dataclasses.replace(found, name=name, notes=(*found.notes, *_shadow_note(reference, "alias")), **rules)

    def _name(self, reference: Reference) -> ModelFiles | Missing:
        entry = self.catalog.find(reference.target)
        if entry is not None:
            found = self._entry(entry, reference)
            if isinstance(found, ModelFiles):
                return dataclasses.replace(found, notes=(*found.notes, *_shadow_note(reference, "catalog entry")))
            return found
        found = self._downloaded(reference)
        if found is not None:
            return found
        if expand(reference.text.strip()).exists():
            return local_model(reference.text.strip())
        raise self._unknown(reference)

    def _unknown(self, reference: Reference) -> NotFound:
        bases = [m.base for m in self.store.manifests()]
        near = near_names(reference.target, [*self.catalog.names(), *self.store.aliases(), *bases])
        hint = f"{', '.join(near)}; or llmrun ls --all" if near else "llmrun ls --all, or ./PATH for a file"
        return NotFound(f"no model named {reference.target}", hint, {"near": near})

    def _entry(self, entry: Entry, reference: Reference) -> ModelFiles | Missing:
        variant = entry.variant(reference.variant)
        if variant is None:
            names = [v.name for v in entry.variants]
            raise NotFound(f"{entry.name} has no variant {reference.variant}", f"one of: {', '.join(names)}",
                           {"near": names})  # fmt: skip
        found = self._variant(entry, variant, reference)
        if found is None and not reference.variant:
            found = self._other_variant(entry, variant, reference)
        if found is not None:
            return found
        notes = [s.note for s in variant.sources if s.kind == "local" and s.note]
        return Missing(reference, entry, variant, "; ".join(notes))

    def _other_variant(self, entry: Entry, default: Variant, reference: Reference) -> ModelFiles | None:
        for other in entry.variants[1:]:
            found = self._variant(entry, other, reference)
            if found is not None:
                note = f"using {entry.name}:{other.name}, which is downloaded; the default is {default.name}"
                return dataclasses.replace(found, notes=(*found.notes, note))
        return None

    def _variant(self, entry: Entry, variant: Variant, reference: Reference) -> ModelFiles | None:
        rules = {"defaults": entry.defaults, "chat": entry.chat}
        for source in variant.sources:
            if source.kind == "local" and source.path:
                found = local_model(_local_path(entry, source), entry.name)
                return dataclasses.replace(found, variant=variant.name, **rules)
        manifest = self.store.find(f"{entry.name}:{variant.name}")
        if manifest and self.store.is_whole(manifest) and _same_revision(manifest, reference):
            found = files_of(self.store, manifest)
            stale = _stale_note(entry, variant, found.files)
            return dataclasses.replace(found, name=entry.name, notes=stale, **rules)
        return self._from_blobs(entry, variant, reference)

    def _from_blobs(self, entry: Entry, variant: Variant, reference: Reference) -> ModelFiles | None:
        # A lost manifest: the catalog's own hashes say which blobs make up the model.
        files = variant.files
        if reference.revision or len(files) != 1 or not self.store.has_blob(files[0].sha256, files[0].size):
            return None
        path, file = self.store.blob(files[0].sha256), files[0]
        local = LocalFile(path, file.name, file.role, path.stat().st_size, file.sha256)
        root = variant.sources[0].repo or variant.sources[0].label
        return ModelFiles(entry.name, f"{entry.name}:{variant.name}", root, (local,), None, variant.name,
                          entry.defaults, entry.chat)  # fmt: skip

    def _downloaded(self, reference: Reference) -> ModelFiles | None:
        whole = [m for m in self.store.manifests() if _answers(m, reference) and self.store.is_whole(m)]
        if not whole:
            return None
        newest = max(whole, key=lambda m: (m.reference == reference.normal, m.pulled_at))
        return files_of(self.store, newest)


class _WithoutAliases(Store):
    """The same files; names are no longer looked up as aliases."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.paths)

    def aliases(self) -> dict[str, str]:
        return {}


def _answers(manifest: Manifest, reference: Reference) -> bool:
    base = dataclasses.replace(reference, variant="", revision="")
    if manifest.base.lower() != base.normal.lower() or not _same_revision(manifest, reference):
        return False
    wanted = reference.variant
    return not wanted or manifest.variant.lower() == wanted.lower() or matches_quant(manifest.files[0].name, wanted)


def _same_revision(manifest: Manifest, reference: Reference) -> bool:
    return (
        not reference.revision
        or reference.revision in ("main", "master")
        or manifest.revision.startswith(reference.revision)
    )


def files_of(store: Store, manifest: Manifest) -> ModelFiles:
    """The engine's view of a downloaded model."""
    directory = store.trees / manifest.key if manifest.directory else None
    files = store.local_files(manifest)
    return ModelFiles(manifest.name, manifest.reference, manifest.root, files, directory, manifest.variant)


def _stale_note(entry: Entry, variant: Variant, files: tuple[LocalFile, ...]) -> tuple[str, ...]:
    wanted = {f.sha256 for f in variant.files if f.sha256}
    if wanted <= {f.sha256 for f in files}:
        return ()
    return (f"the catalog names newer files for {entry.name}:{variant.name}; llmrun pull {entry.name} fetches them",)


def _shadow_note(reference: Reference, what: str) -> tuple[str, ...]:
    if not Path(reference.text.strip()).exists():
        return ()
    text = reference.text.strip()
    return (f"{text} is taken as the {what} of that name; ./{text} means the file or directory here",)


def _local_path(entry: Entry, source: Source) -> str:
    path = expand(source.path)
    return str(path if path.is_absolute() else entry.origin.parent / path)
