"""Compiled kernels on disk: one file a variant and device, with all that a launch needs, and a store of such files.

A file is MAGIC, the length of a JSON text (4 bytes, little endian), the JSON text, the code object, and the sha256 of
everything before it. It is written under another name and renamed, so a reader sees a whole file or none, and two
builders at once do no harm. A file that does not say what it should is refused by name, never used.

    root/<arch>/<kernel>-<24 digits of the hash of key, sources and ABI>.kernel

An entry whose sources have changed has another name: the loader does not find it, `clean` removes it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from strata_kernels.gpu.launch import Variant
from strata_kernels.gpu.sources import Sources
from strata_kernels.gpu.targets import TARGETS, Target

MAGIC = b"LLMRUNK1"
ABI = 1  # arguments in order, then two null pointers; a block of `threads` threads; `shared` bytes of local memory
SUFFIX = ".kernel"
MOST_BYTES = 64 << 20  # of a file: far beyond any kernel
NAME = re.compile(r"[a-z0-9_]+-[0-9a-f]{24}\.kernel")


class BadEntry(ValueError):
    """A file is damaged, or made for another device or another version. The text names the file."""


@dataclass(frozen=True)
class Entry:
    """One variant compiled for one device.

    `symbol`: the function in `code`. `shared`: bytes of dynamic local memory. `threads`: of a block. `types`: of the
    arguments in order, as in Variant. `source`: hash of the kernel's sources. `figures`: what the compiler and
    analysis.py say of it: registers, spills, ...
    """

    key: str
    arch: str
    symbol: str
    shared: int
    threads: int
    types: tuple[str, ...]
    source: str
    toolchain: str
    code: bytes
    figures: Mapping[str, Any] = field(default_factory=dict)
    abi: int = ABI

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.key.partition("(")[0]

    @property
    def file_name(self) -> str:
        """What its file is called."""
        return file_name(self.key, self.source, self.abi)

    def to_bytes(self) -> bytes:
        """Its file."""
        facts = {name: value for name, value in vars(self).items() if name != "code"}
        facts |= {"types": list(self.types), "figures": dict(self.figures), "code_bytes": len(self.code)}
        text = json.dumps(facts | {"code_sha256": sha256(self.code).hexdigest()}, sort_keys=True).encode()
        body = MAGIC + len(text).to_bytes(4, "little") + text + self.code
        return body + sha256(body).digest()


def file_name(key: str, source: str, abi: int = ABI) -> str:
    """The name of the file of a variant: its key and its sources make it."""
    digest = sha256(f"{abi}\0{key}\0{source}".encode()).hexdigest()[:24]
    return f"{key.partition('(')[0]}-{digest}{SUFFIX}"


def read_entry(data: bytes, where: str) -> Entry:
    """An entry from its file's bytes. Raises BadEntry, which names `where`."""
    if data[:8] != MAGIC:
        raise BadEntry(f"{where} is not a compiled kernel of this program")
    if len(data) < 44 or sha256(data[:-32]).digest() != data[-32:]:
        raise BadEntry(f"{where} is damaged: its sha256 is not the one it was written with")
    size = int.from_bytes(data[8:12], "little")
    try:
        facts = json.loads(data[12 : 12 + size])
        code = data[12 + size : -32]
        if sha256(code).hexdigest() != facts.pop("code_sha256") or len(code) != facts.pop("code_bytes"):
            raise BadEntry(f"{where} is damaged: its code is not the one that was compiled")
        if facts["abi"] != ABI:
            raise BadEntry(f"{where} was made for version {facts['abi']} of the launcher, this is version {ABI}")
        return Entry(code=code, types=tuple(facts.pop("types")), **facts)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise BadEntry(f"{where} is damaged: {error}") from error


def check_code(entry: Entry, where: str) -> None:
    """Is the code object one of the entry's device? Raises BadEntry with what it is instead."""
    target = TARGETS.get(entry.arch)
    if target is None:
        raise BadEntry(f"{where} is for {entry.arch}, which is no device of this program")
    if not target.here:
        return  # the vendor's format is not public
    machine, flags = elf_marks(entry.code)
    if machine != target.machine or flags & target.flags_mask != target.flags:
        found = f"machine {machine}, flags {flags:#x}"
        raise BadEntry(f"{where} holds no code for {entry.arch}: {found}, expected {_expected(target)}")


def elf_marks(code: bytes) -> tuple[int, int]:
    """e_machine and e_flags of a 64-bit little-endian ELF file; (0, 0) of anything else."""
    if code[:4] != b"\x7fELF" or len(code) < 64:
        return 0, 0
    return int.from_bytes(code[18:20], "little"), int.from_bytes(code[48:52], "little")


def _expected(target: Target) -> str:
    return f"machine {target.machine}" + (f", flags {target.flags:#x}" if target.flags_mask else "")


class Store:
    """The compiled kernels of one device below `root`. Makes directories only when it writes."""

    def __init__(self, root: Path, arch: str, sources: Sources | None = None) -> None:
        self.root, self.arch = root, arch
        self.sources = sources or Sources()

    @property
    def folder(self) -> Path:
        """Where this device's files lie."""
        return self.root / self.arch

    def path(self, variant: Variant) -> Path:
        """The file of a variant, whether there is one or not."""
        return self.folder / file_name(variant.key, self.sources.hash_of(variant.kernel))

    def load(self, variant: Variant) -> Entry | None:
        """The compiled variant; None: not built. Raises BadEntry (damaged, for another device or variant), OSError."""
        path = self.path(variant)
        entry = self.read(path)
        if entry is not None and (entry.key != variant.key or entry.types != variant.types):
            raise BadEntry(f"{path} holds {entry.key}, not {variant.key}")
        return entry

    def read(self, path: Path) -> Entry | None:
        """The entry in a file of this store; None: no such file. Raises BadEntry, OSError."""
        try:
            if path.stat().st_size > MOST_BYTES:
                raise BadEntry(f"{path} is larger than {MOST_BYTES >> 20} MiB: no compiled kernel")
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        entry = read_entry(data, str(path))
        if entry.arch != self.arch:
            raise BadEntry(f"{path} is for {entry.arch}, not for {self.arch}")
        if entry.file_name != path.name:
            raise BadEntry(f"{path} is called otherwise than its content says: {entry.file_name}")
        check_code(entry, str(path))
        return entry

    def is_current(self, entry: Entry) -> bool:
        """Was it compiled from today's sources?"""
        try:
            return entry.source == self.sources.hash_of(entry.kernel)
        except KeyError:
            return False  # of a kernel that is no more

    def put(self, entry: Entry) -> Path:
        """Write one. Raises OSError (disk full, no rights), BadEntry for code of another device."""
        path = self.folder / entry.file_name
        check_code(entry, str(path))
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, entry.to_bytes())
        return path

    def files(self) -> Iterator[Path]:
        """All files of this device, by name."""
        if self.folder.is_dir():
            yield from sorted(path for path in self.folder.iterdir() if NAME.fullmatch(path.name))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under another name and rename it. Raises OSError, and leaves nothing behind then."""
    with NamedTemporaryFile(dir=path.parent, prefix=".part-", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def stores(root: Path) -> list[Store]:
    """One for each device that has files below `root`."""
    sources = Sources()
    if not root.is_dir():
        return []
    return [Store(root, p.name, sources) for p in sorted(root.iterdir()) if p.is_dir() and p.name in TARGETS]
