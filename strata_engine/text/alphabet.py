"""The byte alphabet of byte-level BPE vocabularies: every byte has one printable character. Data, two functions."""

from __future__ import annotations

# Bytes that stand for themselves; the others take the characters from U+0100 on, in byte order (GPT-2's mapping).
_OWN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def _build() -> dict[int, int]:
    table = {byte: byte for byte in _OWN}
    for count, byte in enumerate(b for b in range(256) if b not in table):
        table[byte] = 0x100 + count
    return table


BYTE_TO_CODE = _build()
_CODE_TO_BYTE = {code: byte for byte, code in BYTE_TO_CODE.items()}


def to_bytes(spelling: str) -> bytes:
    """The bytes a vocabulary entry stands for. An entry outside the alphabet stands for its own UTF-8 bytes."""
    try:
        return bytes(_CODE_TO_BYTE[ord(c)] for c in spelling)
    except KeyError:
        return spelling.encode("utf-8", "replace")


def from_bytes(data: bytes) -> str:
    """How a vocabulary spells these bytes."""
    return "".join(chr(BYTE_TO_CODE[b]) for b in data)
