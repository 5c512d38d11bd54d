"""Compiled kernels as one file to carry to another machine: a plain tar of the files of a store, checked on the way in.

A member is `<arch>/<file name>` and nothing else is taken out of an archive: no paths, links or other files. Each is
read and checked like a file of a store before it is written there.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from strata_kernels.gpu.bundle import MOST_BYTES, BadEntry, Store, check_code, read_entry, write_whole
from strata_kernels.gpu.sources import Sources
from strata_kernels.gpu.targets import TARGETS

_MEMBER = re.compile(r"([a-z0-9_]+)/([a-z0-9_]+-[0-9a-f]{24}\.kernel)")


@dataclass(frozen=True)
class Imported:
    """Kernels taken in, by device; `stale` of them are not of today's sources and will not be used."""

    counts: dict[str, int]
    stale: int


def export_kernels(stores: Iterable[Store], path: Path) -> dict[str, int]:
    """Write all kernels of these stores into one file; how many there are of each device.

    Raises BadEntry for a damaged one (nothing is written then), OSError.
    """
    counts: dict[str, int] = {}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for store in stores:
            for file in store.files():
                entry = store.read(file)
                if entry is None:
                    continue  # another process removed it
                data = entry.to_bytes()
                member = tarfile.TarInfo(f"{store.arch}/{file.name}")
                member.size, member.mode = len(data), 0o644
                archive.addfile(member, io.BytesIO(data))
                counts[store.arch] = counts.get(store.arch, 0) + 1
    write_whole(path, buffer.getvalue())
    return counts


def import_kernels(path: Path, root: Path) -> Imported:
    """Check everything in an archive, then put it below `root`. Raises BadEntry (nothing is written then), OSError."""
    sources = Sources()
    entries = []
    try:
        with tarfile.open(path, mode="r:") as archive:
            for member in archive:
                data = _content(archive, member, path)
                where = f"{path}: {member.name}"
                entry = read_entry(data, where)
                if member.name != f"{entry.arch}/{entry.file_name}":
                    raise BadEntry(f"{where} is called otherwise than its content says")
                check_code(entry, where)
                entries.append(entry)
    except tarfile.TarError as error:
        raise BadEntry(f"{path} is no archive of compiled kernels: {error}") from error
    counts: dict[str, int] = {}
    stale = 0
    for entry in entries:
        store = Store(root, entry.arch, sources)
        store.put(entry)
        stale += not store.is_current(entry)
        counts[entry.arch] = counts.get(entry.arch, 0) + 1
    return Imported(counts, stale)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    found = _MEMBER.fullmatch(member.name)
    if found is None or found[1] not in TARGETS or not member.isreg() or member.size > MOST_BYTES:
        raise BadEntry(f"{path}: {member.name!r} is no compiled kernel")
    file = archive.extractfile(member)
    return b"" if file is None else file.read()
