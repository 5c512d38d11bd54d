"""Finds one member of a zip file by reading only its directory, and unpacks that member's bytes.

Understands ZIP64. `read(start, end)` supplies bytes of the archive, so it may be a file or ranged HTTP.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from strata_engine.errors import CorruptFile, NotFound

ReadRange = Callable[[int, int], bytes]
_END, _END64, _LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_TAIL = 66 * 1024
_STORED, _DEFLATED = 0, 8
_BLOCK, _MOST_OUT = 1 << 20, 8 << 20


@dataclass(frozen=True)
class Member:
    """Where a member's packed bytes lie in the archive, and what they unpack to."""

    name: str
    offset: int
    packed: int
    size: int
    deflated: bool
    crc: int


def find_member(read: ReadRange, archive_size: int, name: str, label: str) -> Member:
    """The member's place. Raises NotFound when the archive lacks it, CorruptFile for a damaged directory."""
    start, length = _directory(read, archive_size, label)
    if not 0 <= start <= start + length <= archive_size:
        raise CorruptFile(f"{label}: the zip directory lies outside the file")
    names: list[str] = []
    for entry in _entries(read(start, start + length) if length else b"", label):
        if entry.name == name:
            return _with_data_offset(read, entry, archive_size, label)
        names.append(entry.name)
    raise NotFound(f"{label} holds no {name}", f"it holds {', '.join(names[:5])}" if names else "")


def _directory(read: ReadRange, size: int, label: str) -> tuple[int, int]:
    tail_start = max(0, size - _TAIL)
    tail = read(tail_start, size)
    at = tail.rfind(_END)
    if at < 0 or len(tail) < at + 22:
        raise CorruptFile(f"{label} is not a zip file, or its end is missing")
    length, start = struct.unpack_from("<II", tail, at + 12)
    if 0xFFFFFFFF not in (length, start):
        return start, length
    if at < 20 or tail[at - 20 : at - 16] != _LOCATOR64:
        raise CorruptFile(f"{label}: the zip directory's place is missing")
    (place,) = struct.unpack_from("<Q", tail, at - 12)
    if not 0 <= place <= size - 56:
        raise CorruptFile(f"{label}: the zip directory's place is wrong")
    record = read(place, place + 56)
    if record[:4] != _END64:
        raise CorruptFile(f"{label}: the zip directory's place is wrong")
    length, start = struct.unpack_from("<QQ", record, 40)
    return start, length


def _entries(data: bytes, label: str) -> Iterator[Member]:
    at = 0
    while data[at : at + 4] == b"PK\x01\x02" and len(data) >= at + 46:
        method, crc, packed, size, n_name, n_extra, n_comment = struct.unpack_from("<H4xIIIHHH", data, at + 10)
        (offset,) = struct.unpack_from("<I", data, at + 42)
        name = data[at + 46 : at + 46 + n_name].decode("utf-8", "replace")
        extra = data[at + 46 + n_name : at + 46 + n_name + n_extra]
        size, packed, offset = _wide(extra, size, packed, offset)
        if method not in (_STORED, _DEFLATED):
            raise CorruptFile(f"{label}: {name} is packed by method {method}, which is not supported")
        yield Member(name, offset, packed, size, method == _DEFLATED, crc)
        at += 46 + n_name + n_extra + n_comment


def _wide(extra: bytes, *values: int) -> tuple[int, int, int]:
    """Values of the ZIP64 extra field in place of those that are all ones."""
    fields = list(values)
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            body = extra[at + 4 : at + 4 + length]
            for i, value in enumerate(fields):
                if value == 0xFFFFFFFF and len(body) >= 8:
                    fields[i], body = struct.unpack_from("<Q", body)[0], body[8:]
        at += 4 + length
    return fields[0], fields[1], fields[2]


def _with_data_offset(read: ReadRange, entry: Member, archive_size: int, label: str) -> Member:
    if entry.offset + 30 > archive_size:
        raise CorruptFile(f"{label}: {entry.name} lies outside the file")
    head = read(entry.offset, entry.offset + 30)
    if head[:4] != b"PK\x03\x04":
        raise CorruptFile(f"{label}: {entry.name} does not begin where the directory says")
    n_name, n_extra = struct.unpack_from("<HH", head, 26)
    start = entry.offset + 30 + n_name + n_extra
    if start + entry.packed > archive_size:
        raise CorruptFile(f"{label}: {entry.name} lies outside the file")
    return Member(entry.name, start, entry.packed, entry.size, entry.deflated, entry.crc)


def unpack(source: BinaryIO, member: Member, target: Path, tick: Callable[[int], None]) -> None:
    """Write the member's content to `target`; `source` stands at its first packed byte. Raises CorruptFile, OSError."""
    written, crc = 0, 0
    with target.open("wb") as stream:
        for block in _blocks(source, member):
            written, crc = written + len(block), zlib.crc32(block, crc)
            if written > member.size:
                raise CorruptFile(f"{member.name} unpacks to more than the {member.size} bytes it announces")
            stream.write(block)
            tick(written)
    if written != member.size or crc != member.crc:
        raise CorruptFile(f"{member.name}: {written} of {member.size} bytes, or a wrong checksum, after unpacking")


def _blocks(source: BinaryIO, member: Member) -> Iterator[bytes]:
    left = member.packed
    inflate = zlib.decompressobj(-15)
    while left > 0:
        data = source.read(min(_BLOCK, left))
        if not data:
            return  # the archive ends early: the length check speaks
        left -= len(data)
        if not member.deflated:
            yield data
            continue
        try:
            while data:  # bounded pieces, whatever the packed bytes claim
                yield inflate.decompress(data, _MOST_OUT)
                data = inflate.unconsumed_tail
        except zlib.error as error:
            raise CorruptFile(f"{member.name}: the packed bytes are damaged ({error})") from error
    if member.deflated:
        yield inflate.flush()
