"""Request body -> JSON object. Every fault is a 400, 413 or 415 with its position; never a 500.

Duplicate keys and NaN are refused (a client that sends them means something else than we would read); a byte order mark
is skipped; lone surrogates become U+FFFD.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from strata_cli.server.errors import HttpFault

_TAKEN = ("json", "text/plain", "x-www-form-urlencoded", "octet-stream")  # curl -d sends the form type
_DISCARD_FACTOR = 4


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse compressed bodies and foreign types before anything is read."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise HttpFault(415, "unsupported_media_type", f"content-encoding {encoding}: send the body uncompressed")
    kind = headers.get("content-type", "").lower()
    if kind and not any(word in kind for word in _TAKEN):
        raise HttpFault(415, "unsupported_media_type", f"content-type {kind}: send application/json")


async def read_bytes(chunks: AsyncIterator[bytes], limit_bytes: int) -> bytes:
    """The whole body. Over the limit the rest is read and thrown away for a while, so that the client sees the 413."""
    parts: list[bytes] = []
    total = 0
    async for chunk in chunks:
        total += len(chunk)
        if total <= limit_bytes:
            parts.append(chunk)
        else:
            parts.clear()
            if total > limit_bytes * _DISCARD_FACTOR:
                break
    if total > limit_bytes:
        details = {"limit_bytes": limit_bytes}
        raise HttpFault(413, "request_too_large", f"the body is over the limit of {limit_bytes} bytes", details)
    return b"".join(parts)


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body. Raises HttpFault 400 with line and column."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _broken(f"not UTF-8 (byte {error.start})", {"position": error.start}) from error
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        where = {"line": error.lineno, "column": error.colno, "position": error.pos}
        raise _broken(f"{error.msg} (line {error.lineno}, column {error.colno})", where) from error
    except RecursionError as error:
        raise _broken("nested too deeply", {}) from error
    except ValueError as error:
        raise _broken(str(error), {}) from error
    if not isinstance(value, dict):
        raise _broken("a JSON object is expected", {})
    return _whole(value) if "\\u" in text else value


def _broken(message: str, details: dict[str, Any]) -> HttpFault:
    return HttpFault(400, "invalid_json", f"the body is not valid JSON: {message}", details)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {twice[:80]!r} appears twice")
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return value
