"""Strict check of a safetensors header. No torch, no numpy, no safetensors package.

parse_header: mapped bytes -> tensors with their place in the file. Lengths, dtypes, shapes and offsets must agree with
each other and with the file before anything is read.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from strata_engine.errors import CorruptFile
from strata_engine.formats.base import TensorMeta
from strata_engine.formats.foreign import HEAD_BYTES, describe, is_safetensors

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_DIMENSIONS = 16
# dtype name -> bits of an element; names of F32, F16, BF16 are those of GGUF
DTYPE_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "U16": 16,
    "I16": 16,
    "U32": 32,
    "I32": 32,
    "U64": 64,
    "I64": 64,
    "F16": 16,
    "BF16": 16,
    "F32": 32,
    "F64": 64,
    "C64": 64,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
_HINT = "Download the file again; `llmrun verify` compares a pulled model with its checksums."


@dataclass(frozen=True)
class SafetensorsHeader:
    """What a safetensors file says about itself. Offsets in `tensors` are from the start of the file."""

    metadata: dict[str, str]
    tensors: dict[str, TensorMeta]
    data_start: int
    warnings: tuple[str, ...] = field(default_factory=tuple)


class _Malformed(Exception):
    """The bytes are not what the format says."""


def parse_header(buffer: memoryview, path: Path) -> SafetensorsHeader:
    """The checked header of a whole mapped file. Raises CorruptFile naming file and tensor."""
    size = len(buffer)
    head = bytes(buffer[:HEAD_BYTES])
    if not is_safetensors(head, size):
        raise CorruptFile(_why_not(head, size, path), hint=_HINT, details={"file": str(path)})
    length = int.from_bytes(head[:8], "little")
    try:
        if length > MAX_HEADER_BYTES:
            raise _Malformed(f"its header is {length} bytes long; {MAX_HEADER_BYTES} are allowed")
        entries = _load(bytes(buffer[8 : 8 + length]))
        return _parse(entries, 8 + length, size, path)
    except _Malformed as error:
        message = f"{path} is not a usable safetensors file: {error}"
        raise CorruptFile(message, hint=_HINT, details={"file": str(path)}) from error


def _why_not(head: bytes, size: int, path: Path) -> str:
    if len(head) >= 9 and head[8:9] == b"{":
        length = int.from_bytes(head[:8], "little")
        return f"{path} is cut in the header: it announces {length} header bytes, only {size - 8} follow"
    return f"{path} is not a safetensors file: it is {describe(head, size)[0]}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise _Malformed(f"the header names {twice!r} twice")
    return result


def _load(raw: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _Malformed(f"its header is not valid JSON: {error}") from error
    if not isinstance(entries, dict):
        raise _Malformed("its header is not a JSON object")
    return entries


def _parse(entries: dict[str, Any], data_start: int, size: int, path: Path) -> SafetensorsHeader:
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _Malformed("__metadata__ must map names to texts")
    if not entries:
        raise _Malformed("it holds no tensors")
    tensors = {name: _read_tensor(name, entry, data_start, size, path) for name, entry in entries.items()}
    end = _check_overlap(sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)), data_start)
    warnings = (f"{size - end} bytes after the last tensor belong to nothing",) if end < size else ()
    return SafetensorsHeader(metadata, tensors, data_start, warnings)


def _read_tensor(name: str, entry: Any, data_start: int, size: int, path: Path) -> TensorMeta:
    if not isinstance(entry, dict):
        raise _Malformed(f"the entry of tensor {name!r} is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _Malformed(f"tensor {name!r} has the unknown dtype {str(dtype)[:40]!r}")
    if not _whole_numbers(shape) or len(shape) > MAX_DIMENSIONS:
        raise _Malformed(f"tensor {name!r} has the bad shape {str(shape)[:60]}")
    if not _whole_numbers(offsets) or len(offsets) != 2:
        raise _Malformed(f"tensor {name!r} has the bad data_offsets {str(offsets)[:60]}")
    begin, end = offsets
    bits = DTYPE_BITS[dtype]
    for dim in shape:
        bits *= dim
    if begin > end or bits != (end - begin) * 8:
        message = (
            f"tensor {name!r} ({dtype}, {shape}) needs {-(-bits // 8)} bytes, its data_offsets are {begin} to {end}"
        )
        raise _Malformed(message)
    if end > size - data_start:
        message = (
            f"tensor {name!r} ({dtype}, {shape}) ends at byte {data_start + end} "
            f"(data starts at {data_start}); the file has {size} bytes"
        )
        raise _Malformed(message)
    return TensorMeta(name, tuple(shape), dtype, path, data_start + begin, end - begin)


def _whole_numbers(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 for value in values
    )


def _check_overlap(ordered: list[TensorMeta], data_start: int) -> int:
    """End of the last tensor. Raises _Malformed when two share bytes."""
    end = data_start
    before = ""
    for tensor in ordered:
        if tensor.offset < end and tensor.nbytes:
            raise _Malformed(f"tensors {before!r} and {tensor.name!r} overlap at byte {tensor.offset}")
        if tensor.offset + tensor.nbytes > end:
            end, before = tensor.offset + tensor.nbytes, tensor.name
    return end
