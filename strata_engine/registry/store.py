"""Downloaded files: blobs by sha256, manifests written last, user aliases. Reading makes no directory.

Layout below Paths.models: blobs/sha256-*, manifests/*.json, trees/<manifest>/<file name> (links, for models of several
files). Changes to manifests happen under one short lock; downloads have a lock for each blob.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from strata_engine.paths import Paths
from strata_engine.registry import atomic, locks, manifest
from strata_engine.registry.files import LocalFile
from strata_engine.registry.manifest import Manifest, ManifestFile
from strata_engine.registry.yaml_nodes import read_nodes


@dataclass(frozen=True)
class Removal:
    """What a removal did, or would do: bytes freed, blobs dropped, and blobs kept because another model uses them."""

    freed_bytes: int
    dropped: tuple[str, ...]
    kept: tuple[str, ...]


class Store:
    """The files of one user. Cheap to make; nothing is read until asked."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.trees = paths.models / "trees"

    # blobs

    def blob(self, sha256: str) -> Path:
        """Where a blob lies or would lie."""
        return self.paths.blobs / f"sha256-{sha256}"

    def has_blob(self, sha256: str, size: int = 0) -> bool:
        """Whether a blob is there (its content was checked when it came), with this size if one is given."""
        try:
            found = self.blob(sha256).stat().st_size
        except OSError:
            return False
        return bool(sha256) and (size == 0 or found == size)

    def blobs(self) -> Iterator[tuple[str, Path]]:
        """sha256 and path of every blob."""
        with contextlib.suppress(OSError):
            for path in sorted(self.paths.blobs.iterdir()):
                if path.name.startswith("sha256-"):
                    yield path.name[len("sha256-") :], path

    def place(self, file: ManifestFile) -> Path:
        """Where a file's bytes lie."""
        return Path(file.path) if file.path else self.blob(file.sha256)

    # manifests

    def manifests(self) -> list[Manifest]:
        """Every readable manifest, by reference."""
        try:
            names = sorted(self.paths.manifests.glob("*.json"))
        except OSError:
            return []
        return [m for m in map(manifest.read, names) if m is not None]

    def find(self, reference: str) -> Manifest | None:
        """The manifest of a full reference (any case)."""
        return manifest.read(self._manifest_path(manifest.key_of(reference)))

    def is_whole(self, found: Manifest) -> bool:
        """Whether every file is where it should be, with its size."""
        for file in found.files:
            try:
                if self.place(file).stat().st_size != file.size:
                    return False
            except OSError:
                return False
        return True

    def local_files(self, found: Manifest) -> tuple[LocalFile, ...]:
        """The files with the paths that a reader should use."""
        tree = self.trees / found.key if found.is_tree else None
        return tuple(
            LocalFile(tree / f.name if tree else self.place(f), f.name, f.role, f.size, f.sha256) for f in found.files
        )

    def write(self, new: Manifest) -> bool:
        """Make a model known. False, and nothing done, if a file vanished meanwhile (another process removed it)."""
        with self.changing():
            if not self.is_whole(new):
                return False
            self._write_tree(new)
            atomic.write_json(self._manifest_path(new.key), manifest.to_json(new))
            atomic.sync_directory(self.paths.manifests)
        return True

    def remove(self, gone: Manifest, dry_run: bool = False) -> Removal:
        """Drop a manifest and the blobs that no other manifest uses."""
        with self.changing() if not dry_run else contextlib.nullcontext():
            used = {sha for m in self.manifests() if m.key != gone.key for sha in m.blobs}
            dropped = sorted(sha for sha in gone.blobs - used if self.has_blob(sha))
            freed = sum(self.blob(sha).stat().st_size for sha in dropped)
            if not dry_run:
                self._manifest_path(gone.key).unlink(missing_ok=True)
                shutil.rmtree(self.trees / gone.key, ignore_errors=True)
                for sha in dropped:
                    self.blob(sha).unlink(missing_ok=True)
        return Removal(freed, tuple(dropped), tuple(sorted(gone.blobs & used)))

    def changing(self) -> AbstractContextManager[None]:
        """The short lock around changes of manifests; never held while anything is downloaded."""
        return locks.hold(self.paths.models / ".lock", poll_s=0.01)

    def _manifest_path(self, key: str) -> Path:
        return self.paths.manifests / f"{key}.json"

    def _write_tree(self, new: Manifest) -> None:
        if not new.is_tree:
            return
        tree = self.trees / new.key
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir(parents=True)
        for file in new.files:
            place = self.place(file)
            try:
                target = place if file.path else Path(os.path.relpath(place, tree))
                (tree / file.name).symlink_to(target)
            except (OSError, NotImplementedError):
                os.link(place, tree / file.name)  # no symbolic links here (Windows without the right)

    # locks of downloads

    def blob_lock(self, key: str) -> Path:
        """Lock file of one download."""
        return self.paths.partial / f"{key}.lock"

    def pulls_running(self) -> bool:
        """Whether any pull runs now: its blobs may not have a manifest yet."""
        try:
            return any(locks.is_held(p) for p in self.paths.partial.glob("*.pull"))
        except OSError:
            return False

    # aliases

    @property
    def alias_file(self) -> Path:
        """The user's own names: a YAML mapping name -> reference."""
        return self.paths.config / "aliases.yaml"

    def aliases(self) -> dict[str, str]:
        """Name -> reference text. Raises UsageError with the line when the file is malformed."""
        if not self.alias_file.is_file():
            return {}
        root = read_nodes(self.alias_file)
        return {} if root is None else {name: node.text(name) for name, node in root.pairs("aliases")}

    def set_alias(self, name: str, target: str | None) -> None:
        """Add, change or (None) drop a name."""
        both = self.aliases()
        both.pop(name, None)
        if target is not None:
            both[name] = target
        # JSON strings are YAML strings; written by hand so that names such as `no` stay text.
        lines = [f"{json.dumps(k, ensure_ascii=False)}: {json.dumps(v, ensure_ascii=False)}" for k, v in both.items()]
        atomic.write_bytes(self.alias_file, ("\n".join(sorted(lines)) + "\n").encode())
