"""Reads GGUF metadata values from a buffer with bounds on every length: scalars, strings, arrays. No torch, no numpy.

Nothing is allocated before the file is known to hold it. String arrays (vocabularies) are checked here and decoded when
first used, numeric arrays are copied in one go.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, overload

MAX_KEY_BYTES = 65535
MAX_NESTING = 4
MAX_STRINGS = 1 << 24  # strings in one array; larger counts are a damaged length, and would take seconds to walk
_STRING, _ARRAY, _BOOL = 8, 9, 7
_MIN_STRING_BYTES, _MIN_ARRAY_BYTES = 8, 12
# type id -> (struct code, array code); the array codes have the same width on every platform we run on
_NUMBERS = {
    0: ("B", "B"),
    1: ("b", "b"),
    2: ("H", "H"),
    3: ("h", "h"),
    4: ("I", "I"),
    5: ("i", "i"),
    6: ("f", "f"),
    7: ("B", "B"),
    10: ("Q", "Q"),
    11: ("q", "q"),
    12: ("d", "d"),
}
_LIST_LIMIT = 1 << 20  # longer numeric arrays stay packed: a list takes 8 to 40 bytes an item


class Malformed(Exception):
    """The bytes are not what the format says. `offset` is where."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class StringArray(Sequence[str]):
    """An array of strings, decoded when first used. Invalid UTF-8 becomes U+FFFD."""

    def __init__(self, data: bytes, count: int) -> None:
        self._data = data
        self._count = count
        self._items: list[str] | None = None

    def _decoded(self) -> list[str]:
        if self._items is None:
            self._items = list(self._decode())
            self._data = b""
        return self._items

    def _decode(self) -> Iterator[str]:
        data, position, length = self._data, 0, struct.Struct("<Q").unpack_from
        for _ in range(self._count):
            start = position + 8
            position = start + length(data, position)[0]
            yield data[start:position].decode("utf-8", "replace")

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._decoded()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (StringArray, list, tuple)):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"<{self._count} strings>"


class ValueReader:
    """A position in a buffer; each method reads one thing and moves on. Raises Malformed."""

    def __init__(self, buffer: memoryview, position: int = 0) -> None:
        self.buffer = buffer
        self.position = position
        self.end = len(buffer)

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return self.end - self.position

    def need(self, nbytes: int, what: str) -> None:
        """Raises Malformed unless `nbytes` more bytes are there."""
        if nbytes > self.left:
            message = f"cut in the header: {what} needs {nbytes} bytes at offset {self.position}, {self.left} are left"
            raise Malformed(message, self.position)

    def number(self, code: str, what: str) -> Any:
        """One little-endian number of a struct code."""
        size = struct.calcsize(f"<{code}")
        self.need(size, what)
        value = struct.unpack_from(f"<{code}", self.buffer, self.position)[0]
        self.position += size
        return value

    def raw_string(self, what: str) -> bytes:
        """A length and that many bytes."""
        length = self.number("Q", f"the length of {what}")
        self.need(length, what)
        start, self.position = self.position, self.position + length
        return bytes(self.buffer[start : self.position])

    def name(self, what: str) -> str:
        """A key or tensor name: at most 65535 bytes of valid UTF-8. May be empty (the caller says what that means)."""
        start = self.position
        length = self.number("Q", f"the length of {what}")
        if length > MAX_KEY_BYTES:
            raise Malformed(f"{what} is {length} bytes long; 1 to {MAX_KEY_BYTES} are allowed", start)
        self.position = start
        raw = self.raw_string(what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Malformed(f"{what} is not valid UTF-8: {raw[:40]!r}", start) from error

    def value(self, what: str) -> tuple[int, Any]:
        """(type id, value) of a metadata entry."""
        type_id = self.number("I", f"the type of {what}")
        return type_id, self._typed(type_id, what, 0)

    def _typed(self, type_id: int, what: str, depth: int) -> Any:
        if type_id == _STRING:
            return self.raw_string(what).decode("utf-8", "replace")
        if type_id == _ARRAY:
            return self._array(what, depth + 1)
        if type_id not in _NUMBERS:
            raise Malformed(f"{what} has the unknown value type {type_id}", self.position - 4)
        value = self.number(_NUMBERS[type_id][0], what)
        return bool(value) if type_id == _BOOL else value

    def _array(self, what: str, depth: int) -> Any:
        start = self.position
        if depth > MAX_NESTING:
            raise Malformed(f"{what}: arrays are nested more than {MAX_NESTING} deep", start)
        type_id, count = self.number("I", f"the item type of {what}"), self.number("Q", f"the item count of {what}")
        if type_id == _STRING:
            return self._strings(count, what)
        if type_id == _ARRAY:
            self._fits(count, _MIN_ARRAY_BYTES, what)
            return [self._array(what, depth + 1) for _ in range(count)]
        if type_id not in _NUMBERS:
            raise Malformed(f"{what} is an array of the unknown value type {type_id}", start)
        return self._numbers(type_id, count, what)

    def _fits(self, count: int, least_bytes: int, what: str) -> None:
        if count > self.left // least_bytes:
            message = (
                f"{what} is an array of {count} items at offset {self.position}, but only {self.left} bytes are left"
            )
            raise Malformed(message, self.position)

    def _numbers(self, type_id: int, count: int, what: str) -> Any:
        code = _NUMBERS[type_id][1]
        self._fits(count, array(code).itemsize, what)
        items = array(code)
        nbytes = count * items.itemsize
        items.frombytes(self.buffer[self.position : self.position + nbytes])
        self.position += nbytes
        if sys.byteorder == "big":
            items.byteswap()
        if count > _LIST_LIMIT:
            return items
        return [bool(item) for item in items] if type_id == _BOOL else items.tolist()

    def _strings(self, count: int, what: str) -> StringArray:
        self._fits(count, _MIN_STRING_BYTES, what)
        if count > MAX_STRINGS:
            raise Malformed(f"{what} is an array of {count} strings; {MAX_STRINGS} are allowed", self.position)
        start = position = self.position
        buffer, length = self.buffer, struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                position += 8 + length(buffer, position)[0]
        except (struct.error, OverflowError):  # the previous string ran past the end
            position = self.end + 1
        if position > self.end:
            raise Malformed(f"cut in the header: the {count} strings of {what} run past the end of the file", start)
        self.position = position
        return StringArray(bytes(buffer[start:position]), count)
