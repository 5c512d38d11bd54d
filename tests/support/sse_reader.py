"""Reads an event stream strictly, as a picky client would: every line must be an event, a comment or blank."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Streamed:
    """One finished stream. `done`: it ended with [DONE]. `comments`: keep-alive lines."""

    status: int
    headers: httpx.Headers
    chunks: list[dict[str, Any]] = field(default_factory=list)
    comments: int = 0
    done: bool = False
    raw: bytes = b""

    @property
    def text(self) -> str:
        """Content of choice 0."""
        return self.joined("content")

    @property
    def error(self) -> dict[str, Any] | None:
        """The error event, if one came."""
        return next((chunk["error"] for chunk in self.chunks if "error" in chunk), None)

    def joined(self, name: str, index: int = 0) -> str:
        """One delta field (or `text`) of a choice, joined."""
        found = [c.get("delta", c).get(name) or "" for c in self.choices(index)]
        return "".join(found)

    def choices(self, index: int = 0) -> list[dict[str, Any]]:
        """The choice objects of one index."""
        return [c for chunk in self.chunks for c in chunk.get("choices", ()) if c["index"] == index]

    def reason(self, index: int = 0) -> str | None:
        """The finish reason."""
        return self.choices(index)[-1]["finish_reason"]


def read_stream(http: httpx.Client, path: str, body: dict[str, Any], **options: Any) -> Streamed:
    """POST with stream: true and read to the end. A refused request gives its JSON as the only chunk."""
    with http.stream("POST", path, json={**body, "stream": True}, **options) as reply:
        found = Streamed(reply.status_code, reply.headers)
        found.raw = reply.read()
    if not reply.headers["content-type"].startswith("text/event-stream"):
        found.chunks = [json.loads(found.raw)]
        return found
    for line in found.raw.decode().splitlines():  # splits at U+2028 and U+0085 too, as some clients do
        if line.startswith(":"):
            found.comments += 1
        elif line == "data: [DONE]":
            found.done = True
        elif line.startswith("data: "):
            found.chunks.append(json.loads(line[6:]))
        elif line:
            raise ValueError(f"not an event line: {line!r}")
    return found
