"""Carries out a plan: sources in order, files one after the other, manifest last.

A source that does not answer costs a few seconds, then the next is tried, and the switch is reported. Nothing of a
model is visible before all of it is there.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from strata_engine.errors import AuthError, IntegrityError, LlmrunError, NetworkError, NotFound, OutOfMemory
from strata_engine.registry import locks
from strata_engine.registry.acquire import Work, acquire, part_key
from strata_engine.registry.entries import CatalogFile, Source
from strata_engine.registry.files import ModelFiles
from strata_engine.registry.hubs.huggingface import cached_blob
from strata_engine.registry.journal import good_bytes
from strata_engine.registry.manifest import Manifest, ManifestFile, key_of
from strata_engine.registry.plan import PullPlan, worst
from strata_engine.registry.progress import Progress, Report, ignore
from strata_engine.registry.publish import sha256_of
from strata_engine.registry.resolve import files_of
from strata_engine.registry.sources import Hubs
from strata_engine.registry.store import Store
from strata_engine.units import format_bytes

_ROOM_LEFT_BYTES = 8 << 20


def pull(plan: PullPlan, store: Store, report: Report = ignore, hubs: Hubs | None = None) -> ModelFiles:
    """Fetch what the plan names. Raises NetworkError, AuthError, NotFound, IntegrityError, OutOfMemory, OSError."""
    there = _already(plan, store, report)
    if there is not None:  # also where the store cannot be written
        return there
    options = plan.options
    own = hubs or Hubs(options.hubs, options.transfer, options.offline)
    running = store.paths.partial / f"{key_of(plan.reference)}.{os.getpid()}.pull"
    try:
        with locks.hold(running):
            return _Pull(plan, store, report, own).run()
    finally:
        if hubs is None:
            own.close()


def present(plan: PullPlan, store: Store) -> dict[str, ManifestFile]:
    """Files of the plan that are on this disk, by path: blobs, or good files of the Hugging Face cache (hashed)."""
    old = store.find(plan.reference)
    found = _unchanged(plan, store)
    elsewhere = {r.sha256: r for r in old.files if r.path} if old and store.is_whole(old) else {}
    for file in plan.files:
        if store.has_blob(file.sha256, file.size):
            size = store.blob(file.sha256).stat().st_size
            found[file.path] = ManifestFile(file.name, file.role, size, file.sha256)
            continue
        if plan.options.verify != "full" and file.sha256 in elsewhere:  # hashed when it was first taken
            found[file.path] = elsewhere[file.sha256]
            continue
        repo = next((s.repo for s in plan.sources if s.kind == "huggingface"), "")
        path = cached_blob(plan.options.hubs.hf_cache, repo, file.sha256, file.size)
        if path is not None and sha256_of(path) == file.sha256:
            place = str(path.resolve())
            found[file.path] = ManifestFile(file.name, file.role, path.stat().st_size, file.sha256, place)
    return found


def _already(plan: PullPlan, store: Store, report: Report) -> ModelFiles | None:
    """The model, if an earlier pull left exactly the planned files and no deeper check is asked for."""
    old = store.find(plan.reference)
    if old is None or plan.options.verify == "full" or not store.is_whole(old):
        return None
    found = present(plan, store)
    if {r.sha256 for r in found.values()} != {r.sha256 for r in old.files} or len(found) != len(plan.files):
        return None
    for record in old.files:
        report(Progress("have", plan.name, record.name, record.size, record.size))
    return files_of(store, old)


def _unchanged(plan: PullPlan, store: Store) -> dict[str, ManifestFile]:
    """Small files whose hash the source does not tell, kept from an earlier pull of the same commit."""
    old = store.find(plan.reference)
    if old is None or not plan.revision or old.revision != plan.revision or not store.is_whole(old):
        return {}
    by_name = {f.name: f for f in old.files}
    return {f.path: r for f in plan.files if not f.sha256 and (r := by_name.get(f.name)) and r.size == f.size}


class _Pull:
    def __init__(self, plan: PullPlan, store: Store, report: Report, hubs: Hubs) -> None:
        self.plan, self.store, self.report, self.hubs = plan, store, report, hubs
        self.records: dict[str, ManifestFile] = {}
        self.source, self.revision = "", plan.revision

    def run(self) -> ModelFiles:
        for _ in range(3):  # again when another process removed a file that was counted on
            self.records = present(self.plan, self.store)
            self._check_present()
            missing = [f for f in self.plan.files if f.path not in self.records]
            for file in self.plan.files:
                if file.path in self.records:
                    size = self.records[file.path].size
                    self.report(Progress("have", self.plan.name, file.name, size, size))
            if missing:
                self._check_space(missing)
                self.report(Progress("plan", self.plan.name, total_bytes=sum(f.size for f in missing)))
                self._from_any(missing)
            manifest = self._manifest()
            if self.store.write(manifest):
                return files_of(self.store, manifest)
        raise IntegrityError(f"{self.plan.name}: its files are removed while it is pulled", "run it again")

    def _check_present(self) -> None:
        if self.plan.options.verify != "full":
            return
        for path, record in list(self.records.items()):
            place = self.store.place(record)
            if sha256_of(place) != record.sha256:
                self.report(Progress("restart", self.plan.name, record.name, message="the copy on disk is damaged"))
                if not record.path:
                    place.unlink()
                del self.records[path]

    def _check_space(self, missing: Sequence[CatalogFile]) -> None:
        """Room for all files together, on the disk of the unfinished ones and on that of the store."""
        kept = sum(good_bytes(self.store.paths.partial / f"{part_key(f, '')}.part") for f in missing)
        need = sum(f.size for f in missing) - kept
        if need <= 0:
            return  # sizes are not known before the files are asked for
        if any(s.kind == "index" for s in self.plan.sources):
            need += max(f.size for f in missing)  # packed and unpacked lie side by side for a moment
        for folder in (self.store.paths.partial, self.store.paths.blobs):
            free = shutil.disk_usage(_existing(folder)).free
            if need + _ROOM_LEFT_BYTES > free:
                numbers = {"needed_bytes": need, "free_bytes": free}
                text = f"{self.plan.name} needs {format_bytes(need)} more on the disk of {folder}"
                hint = "free some space, or set LLMRUN_HOME to a larger disk"
                raise OutOfMemory(f"{text}, {format_bytes(free)} are free", hint, numbers)

    def _from_any(self, missing: Sequence[CatalogFile]) -> None:
        if self.hubs.offline:
            names = ", ".join(f.name for f in missing[:3]) + (" ..." if len(missing) > 3 else "")
            text = f"{self.plan.name} is not on this disk ({names} missing), and the network is switched off"
            raise NetworkError(text, f"llmrun pull {self.plan.reference}   (without --offline)")
        faults: list[LlmrunError] = []
        for i, source in enumerate(self.plan.sources):
            last = i == len(self.plan.sources) - 1
            try:
                if i or not self.plan.listed:
                    self.report(Progress("source", self.plan.name, message=source.label))
                    silent = "" if last else self.hubs.silence(source, self.plan.options.answer_s)
                    if silent:
                        raise NetworkError(f"{source.label}: {silent}")
                self._from_one(source, i, [f for f in missing if f.path not in self.records])
                self.source = source.label
                self.revision = self.plan.revision if i == 0 else source.revision
                return
            except (NetworkError, AuthError, NotFound, IntegrityError) as error:
                faults.append(error)
                if not last:
                    self.report(Progress("switch", self.plan.name, message=error.message))
        raise worst(self.plan.name, faults)

    def _from_one(self, source: Source, index: int, missing: Sequence[CatalogFile]) -> None:
        hub = self.hubs.hub(source)
        options = self.plan.options
        work = Work(self.store, self.hubs.client, options.transfer, self.report, self.plan.name)
        revision = self.plan.revision if index == 0 else source.revision
        for file in missing:
            self.records[file.path] = acquire(work, file, hub.remote(source, revision, file))

    def _manifest(self) -> Manifest:
        plan = self.plan
        files = tuple(self.records[f.path] for f in plan.files)
        old = self.store.find(plan.reference)
        source = self.source or (old.source if old else "files already on this disk")
        return Manifest(plan.reference, plan.base, plan.variant, plan.name, plan.root, files, source, self.revision,
                        plan.directory, time.time())  # fmt: skip


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
