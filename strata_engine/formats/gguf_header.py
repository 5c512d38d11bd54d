"""Strict check of a GGUF header, before anything else reads the file. No torch, no numpy, no gguf package.

parse_header: mapped bytes -> GgufHeader. Every count, length and offset is compared with what the file holds before it
is used, by subtraction, so a damaged file costs one clear CorruptFile and neither time nor memory. Knows nothing of
what tensors are for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strata_engine.errors import CorruptFile
from strata_engine.formats.base import TensorMeta
from strata_engine.formats.foreign import HEAD_BYTES, describe
from strata_engine.formats.gguf_types import REMOVED_IDS, TYPES_BY_ID, StorageType
from strata_engine.formats.gguf_values import Malformed, ValueReader

VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
_LEAST_KEY_BYTES = 8 + 1 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8
_INTEGER_TYPES = frozenset({0, 1, 2, 3, 4, 5, 10, 11})
_HINT = "Download the file again; `llmrun verify` compares a pulled model with its checksums."


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says about itself. Offsets in `tensors` are from the start of the file."""

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorMeta]
    data_start: int
    alignment: int
    warnings: tuple[str, ...] = field(default_factory=tuple)

    @property
    def split(self) -> tuple[int, int]:
        """(number of this part from 0, parts)."""
        return _as_count(self.metadata.get("split.no"), 0), _as_count(self.metadata.get("split.count"), 1)


def parse_header(buffer: memoryview, path: Path, need_tensors: bool = True) -> GgufHeader:
    """The checked header of a whole mapped file. Raises CorruptFile naming file, offset and key or tensor.

    `need_tensors` False accepts a file that holds only a vocabulary.
    """
    if buffer[:4] != b"GGUF":
        what, hint = describe(bytes(buffer[:HEAD_BYTES]), len(buffer))
        raise CorruptFile(f"{path} is not a GGUF file: it is {what}", hint=hint, details={"file": str(path)})
    try:
        return _parse(ValueReader(buffer, 4), path, need_tensors)
    except Malformed as error:
        details = {"file": str(path), "offset": error.offset}
        raise CorruptFile(f"{path} is not a usable GGUF file: {error}", hint=_HINT, details=details) from error


def _parse(reader: ValueReader, path: Path, need_tensors: bool) -> GgufHeader:
    version = _read_version(reader)
    tensor_count, key_count = reader.number("Q", "the tensor count"), reader.number("Q", "the key count")
    _check_count(reader, key_count, _LEAST_KEY_BYTES, MAX_KEYS, "metadata keys")
    metadata, types = _read_metadata(reader, key_count)
    part = _check_metadata(metadata, types)
    _check_count(reader, tensor_count, _LEAST_TENSOR_BYTES, MAX_TENSORS, "tensors")
    if tensor_count == 0 and need_tensors and not part:
        raise Malformed("it holds no tensors", 8)
    alignment, warnings = _read_alignment(metadata, types)
    infos = _read_tensor_infos(reader, tensor_count)
    data_start = -(-reader.position // alignment) * alignment
    if data_start > reader.end and infos:
        message = f"general.alignment {alignment} puts the tensor data at {data_start}, the file has {reader.end} bytes"
        raise Malformed(message, reader.position)
    tensors = {info.name: _place(info, data_start, alignment, reader.end, path) for info in infos}
    _check_overlap(tensors.values())
    return GgufHeader(version, metadata, tensors, data_start, alignment, tuple(warnings))


def _read_version(reader: ValueReader) -> int:
    version = reader.number("I", "the version")
    if version in VERSIONS:
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in (1, *VERSIONS):
        raise Malformed(f"its byte order is big-endian (GGUF version {swapped}); only little-endian is supported", 4)
    raise Malformed(f"it has GGUF version {version}; versions 2 and 3 are supported", 4)


def _check_count(reader: ValueReader, count: int, least_bytes: int, most: int, what: str) -> None:
    if count > most:
        raise Malformed(f"it announces {count} {what}; {most} are allowed", 8)
    if count * least_bytes > reader.left:
        raise Malformed(f"cut in the header: it announces {count} {what}, but only {reader.left} bytes follow", 8)


def _read_metadata(reader: ValueReader, count: int) -> tuple[dict[str, Any], dict[str, int]]:
    """(values, value type ids) by key."""
    metadata: dict[str, Any] = {}
    types: dict[str, int] = {}
    for number in range(count):
        start = reader.position
        key = reader.name(f"metadata key {number + 1} of {count}")
        if not key:
            raise Malformed(f"metadata key {number + 1} of {count} is empty", start)
        if key in metadata:
            raise Malformed(f"the metadata key {key!r} appears twice", start)
        types[key], metadata[key] = reader.value(f"the metadata key {key!r}")
    return metadata, types


def _check_metadata(metadata: dict[str, Any], types: dict[str, int]) -> bool:
    """True when the file is a part of a split model. Raises Malformed for bad split numbers or no architecture."""
    for key in ("split.no", "split.count", "split.tensors.count"):
        if key in metadata and (types[key] not in _INTEGER_TYPES or metadata[key] < 0):
            raise Malformed(f"{key} must be a whole number, it is {_short(metadata[key])}", 0)
    number, count = metadata.get("split.no", 0), metadata.get("split.count", 1)
    if number and number >= count:
        raise Malformed(f"split.no is {number}, but split.count is {count}", 0)
    architecture = metadata.get("general.architecture")
    if number == 0 and not (isinstance(architecture, str) and architecture):
        state = "is missing" if architecture is None else f"must be a name, it is {_short(architecture)}"
        raise Malformed(f"the metadata key general.architecture {state}", 0)
    return count > 1


def _read_alignment(metadata: dict[str, Any], types: dict[str, int]) -> tuple[int, list[str]]:
    key = "general.alignment"
    value = metadata.get(key, DEFAULT_ALIGNMENT)
    if key in types and types[key] not in _INTEGER_TYPES:
        raise Malformed(f"{key} must be a whole number, it is {_short(value)}", 0)
    if value <= 0 or value % 8:
        raise Malformed(f"{key} must be a positive multiple of 8, it is {value}", 0)
    unusual = (
        [] if value & (value - 1) == 0 else [f"{key} is {value}, not a power of two: other programs may refuse it"]
    )
    return value, unusual


@dataclass(frozen=True)
class _Info:
    """A tensor as the header lists it: dims with the contiguous one first, offset from the start of the data."""

    name: str
    dims: tuple[int, ...]
    type: StorageType
    offset: int
    at: int  # where the entry is in the file


def _read_tensor_infos(reader: ValueReader, count: int) -> list[_Info]:
    infos: list[_Info] = []
    names: set[str] = set()
    for number in range(count):
        info = _read_tensor_info(reader, f"tensor {number + 1} of {count}")
        if info.name in names:
            raise Malformed(f"tensor {info.name!r} appears twice", info.at)
        names.add(info.name)
        infos.append(info)
    return infos


def _read_tensor_info(reader: ValueReader, position: str) -> _Info:
    at = reader.position
    name = reader.name(f"the name of {position}")
    what = f"tensor {name!r}" if name else position
    rank = reader.number("I", f"the number of dims of {what}")
    if not 1 <= rank <= MAX_DIMENSIONS:
        raise Malformed(f"{what} has {rank} dims; 1 to {MAX_DIMENSIONS} are allowed", at)
    dims = tuple(reader.number("Q", f"the dims of {what}") for _ in range(rank))
    if 0 in dims:
        raise Malformed(f"{what} has dims {list(dims)}; every dim must be at least 1", at)
    if not name:
        raise Malformed(f"{what} has an empty name", at)
    type_id, offset = reader.number("I", f"the type of {what}"), reader.number("Q", f"the offset of {what}")
    storage = TYPES_BY_ID.get(type_id)
    if storage is None:
        why = "has since been removed from the format" if type_id in REMOVED_IDS else "is unknown"
        raise Malformed(f"{what} has storage type {type_id}, which {why}", at)
    if dims[0] % storage.elements:
        message = f"{what} has rows of {dims[0]} values; {storage.name} needs a multiple of {storage.elements}"
        raise Malformed(message, at)
    return _Info(name, dims, storage, offset, at)


def _place(info: _Info, data_start: int, alignment: int, size: int, path: Path) -> TensorMeta:
    """The tensor's place in the file. Raises Malformed with all numbers when it is not wholly inside."""
    values = 1
    for dim in info.dims:
        values *= dim
    nbytes = values // info.type.elements * info.type.nbytes
    if info.offset > size - data_start or nbytes > size - data_start - info.offset:
        message = (
            f"tensor {info.name!r} ({info.type.name}, {list(reversed(info.dims))}) needs {nbytes} bytes at offset "
            f"{info.offset} of the data, which starts at {data_start}: its end is {data_start + info.offset + nbytes}, "
            f"the file has {size} bytes"
        )
        raise Malformed(message, info.at)
    if info.offset % alignment:
        raise Malformed(f"tensor {info.name!r} is at offset {info.offset}, not a multiple of {alignment}", info.at)
    shape = tuple(reversed(info.dims))
    return TensorMeta(info.name, shape, info.type.name, path, data_start + info.offset, nbytes)


def _check_overlap(tensors: Iterable[TensorMeta]) -> None:
    before: TensorMeta | None = None
    for tensor in sorted(tensors, key=lambda t: t.offset):
        if before is not None and tensor.offset < before.offset + before.nbytes:
            message = (
                f"tensors {before.name!r} (bytes {before.offset} to {before.offset + before.nbytes}) and "
                f"{tensor.name!r} (from {tensor.offset}) overlap"
            )
            raise Malformed(message, tensor.offset)
        before = tensor


def _as_count(value: object, default: int) -> int:
    return value if isinstance(value, int) else default


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
