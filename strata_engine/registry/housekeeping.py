"""What lies in the store and the cache, what of it nobody needs, and whether all of it is still what it was."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from strata_engine.registry import locks, manifest
from strata_engine.registry.journal import discard, good_bytes
from strata_engine.registry.manifest import Manifest, ManifestFile
from strata_engine.registry.progress import Progress, Report, ignore
from strata_engine.registry.publish import sha256_of
from strata_engine.registry.store import Store

_STRAY = (".tmp", ".unpacked")


@dataclass(frozen=True)
class CacheItem:
    """One thing on disk. `kind`: model | partial | unused | stray. `modified`: seconds since 1970.

    unused = a blob or tree that no model names; stray = a temporary file of a process that was killed.
    """

    kind: str
    name: str
    path: Path
    size_bytes: int
    modified: float
    note: str = ""


@dataclass(frozen=True)
class Pruned:
    """What was removed, or would be. `kept`: why something that looks unused was left alone."""

    freed_bytes: int
    items: tuple[CacheItem, ...]
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """One file that is not what its manifest says. `what`: missing | size | content."""

    reference: str
    file: str
    path: Path
    what: str
    text: str


def list_cache(store: Store) -> list[CacheItem]:
    """Models first, then unfinished downloads, then what nobody needs. Changes nothing."""
    models = [_model_item(store, m) for m in store.manifests()]
    return [*models, *_partials(store), *_unused(store), *_strays(store)]


def prune(store: Store, older_than_s: float = 0.0, dry_run: bool = False, now: float | None = None) -> Pruned:
    """Remove unfinished downloads, unused blobs and stray files older than this. Never a model, nothing in use."""
    before = (time.time() if now is None else now) - older_than_s
    kept: list[str] = []
    strays = [] if store.pulls_running() else _strays(store)
    items = [i for i in (*_partials(store), *strays) if i.modified <= before and i.note != "in use"]
    with contextlib.nullcontext() if dry_run else store.changing():
        unused = [i for i in _unused(store) if i.modified <= before]
        if unused and store.pulls_running():
            kept.append("a download is running; unused files may belong to it and are kept")
            unused = []
        gone = [*items, *unused]
        if not dry_run:
            for item in gone:
                _remove(item)
    return Pruned(sum(i.size_bytes for i in gone), tuple(gone), tuple(kept))


def verify_all(store: Store, wanted: Sequence[Manifest] | None = None, report: Report = ignore) -> list[Problem]:
    """Hash every file of the models (all of them by default). A blob shared by several is hashed once."""
    results: dict[Path, tuple[str, str] | None] = {}
    problems: list[Problem] = []
    for found in store.manifests() if wanted is None else wanted:
        for file in found.files:
            path = store.place(file)
            if path not in results:
                results[path] = _check(path, file, _ticker(report, found.reference, file))
            result = results[path]
            if result is not None:
                problems.append(Problem(found.reference, file.name, path, *result))
    return problems


def drop_damaged(store: Store, problems: Sequence[Problem]) -> list[Path]:
    """Remove damaged blobs of our own store, so that the next pull fetches them again. Returns what was removed."""
    blobs = {path for _sha, path in store.blobs()}
    gone = sorted({p.path for p in problems if p.what != "missing" and p.path in blobs})
    with store.changing():
        for path in gone:
            path.unlink(missing_ok=True)
    return gone


def _ticker(report: Report, reference: str, file: ManifestFile) -> Callable[[int], None]:
    return lambda done: report(Progress("verify", reference, file.name, done, file.size))


def _check(path: Path, file: ManifestFile, tick: Callable[[int], None]) -> tuple[str, str] | None:
    try:
        size = path.stat().st_size
    except OSError as error:
        return "missing", f"not there ({error.strerror})"
    if size != file.size:
        return "size", f"{size} bytes, {file.size} are expected"
    got = sha256_of(path, tick)
    if got != file.sha256:
        return "content", f"sha256 {got}, {file.sha256} is expected"
    return None


def _model_item(store: Store, found: Manifest) -> CacheItem:
    note = "" if store.is_whole(found) else "incomplete: a file is missing or cut"
    place = store.trees / found.key if found.is_tree else store.place(found.files[0])
    return CacheItem("model", found.reference, place, found.size_bytes, found.pulled_at, note)


def _partials(store: Store) -> Iterator[CacheItem]:
    for path in _listed(store.paths.partial, "*.part"):
        stat = path.stat()
        in_use = locks.is_held(store.blob_lock(path.name.removesuffix(".part").removesuffix(".wheel")))
        note = "in use" if in_use else f"{good_bytes(path)} bytes are good"
        size = stat.st_blocks * 512 if hasattr(stat, "st_blocks") else stat.st_size  # the file has holes
        yield CacheItem("partial", path.name, path, size, stat.st_mtime, note)


def _unused(store: Store) -> Iterator[CacheItem]:
    named = store.manifests()
    used = {sha for m in named for sha in m.blobs}
    for sha, path in store.blobs():
        if sha not in used:
            yield CacheItem("unused", path.name, path, path.stat().st_size, path.stat().st_mtime, "no model names it")
    keys = {m.key for m in named}
    for tree in _listed(store.trees, "*"):
        if tree.name not in keys:
            yield CacheItem("unused", tree.name, tree, 0, tree.lstat().st_mtime, "links of a model that is gone")


def _strays(store: Store) -> Iterator[CacheItem]:
    folders = (store.paths.partial, store.paths.blobs, store.paths.manifests)
    for path in (p for folder in folders for p in _listed(folder, "*")):
        lonely = path.name.endswith(".part.json") and not path.with_name(path.name.removesuffix(".json")).exists()
        dead = path.suffix in (".lock", ".pull") and not locks.is_held(path) and path.exists()
        broken = path.parent == store.paths.manifests and path.suffix == ".json" and manifest.read(path) is None
        if path.name.endswith(_STRAY) or lonely or dead or broken:
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                yield CacheItem("stray", path.name, path, stat.st_size, stat.st_mtime, "left by a process that ended")


def _listed(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _remove(item: CacheItem) -> None:
    if item.kind == "partial":
        discard(item.path)
    elif item.path.is_dir() and not item.path.is_symlink():
        shutil.rmtree(item.path, ignore_errors=True)
    else:
        item.path.unlink(missing_ok=True)
