"""GGUF bytes by hand, for files that no writer would write."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def text(value: str | bytes) -> bytes:
    """A length-prefixed string."""
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, type_id: int, value: bytes) -> bytes:
    """A metadata entry of any type."""
    return text(name) + struct.pack("<I", type_id) + value


def key_text(name: str, value: str | bytes) -> bytes:
    """A string entry."""
    return key(name, 8, text(value))


def key_u32(name: str, value: int) -> bytes:
    """A u32 entry."""
    return key(name, 4, struct.pack("<I", value))


def key_array(name: str, type_id: int, count: int, items: bytes) -> bytes:
    """An array entry."""
    return key(name, 9, struct.pack("<IQ", type_id, count) + items)


def tensor(name: str, dims: Sequence[int], type_id: int = 0, offset: int = 0) -> bytes:
    """A tensor entry; dims with the contiguous one first."""
    packed = b"".join(struct.pack("<Q", dim) for dim in dims)
    return text(name) + struct.pack("<I", len(dims)) + packed + struct.pack("<IQ", type_id, offset)


def gguf(
    keys: Sequence[bytes], tensors: Sequence[bytes], data: bytes = b"", version: int = 3, align: int = 32
) -> bytes:
    """A whole file; the data starts at the next multiple of `align`."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys) + b"".join(tensors)
    return head + b"\0" * (-len(head) % align) + data


LLAMA = key_text("general.architecture", "llama")
