"""JSON text and server-sent events that no client's line splitter can cut in the wrong place."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

# Some clients split lines with a function that also breaks at these three.
_BREAKS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


def dumps(value: Any) -> bytes:
    """Compact JSON as UTF-8. Lone surrogates become U+FFFD. Raises ValueError for NaN and infinities."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(_BREAKS)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def frames(values: Iterable[Any]) -> bytes:
    """One event for each value, in one piece for one write."""
    return b"".join(b"data: " + dumps(value) + b"\n\n" for value in values)
