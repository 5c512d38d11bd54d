"""Bytes to text as they come: whole characters only, U+FFFD for each maximal invalid part, at most 3 bytes held."""

from __future__ import annotations

import codecs


class Utf8Decoder:
    """Decodes a stream of bytes; the text does not depend on how the stream is cut."""

    def __init__(self) -> None:
        # The standard library's decoder has exactly the wanted rule (Unicode, "maximal subparts").
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """The characters that are complete now."""
        return self._decoder.decode(data)

    def close(self) -> str:
        """U+FFFD if the stream ended inside a character, else nothing."""
        return self._decoder.decode(b"", True)

    @property
    def held(self) -> bytes:
        """The bytes of a character that is not complete yet."""
        return self._decoder.getstate()[0]
