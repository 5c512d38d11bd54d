"""One streamed completion and its times: what a client of a server sees.

Definitions: t0 = request sent; first = first chunk that carries generated text (a role-only or empty chunk does not);
last = last byte. Tokens come from the server's own usage.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Sample:
    """One request. Seconds from `sent`; `gaps_s` between chunks with text. `error` "" = it succeeded."""

    sent: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str = ""

    @property
    def per_token_s(self) -> float | None:
        """TPOT: (last - first) / (tokens - 1); None for a single token."""
        return (self.last_s - self.first_s) / (self.output_tokens - 1) if self.output_tokens > 1 else None


async def run_one(client: httpx.AsyncClient, body: dict[str, Any]) -> Sample:
    """POST /v1/completions as a stream and time it. Network and server faults end up in `error`."""
    sample = Sample(sent=time.perf_counter())
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode("utf-8", "replace")
                sample.error = f"status {response.status_code}: {text[:200]}"
                return sample
            await _read(response, sample)
    except httpx.HTTPError as error:
        sample.error = f"{type(error).__name__}: {error}"
    except ValueError as error:
        sample.error = f"not a JSON chunk: {error}"
    sample.last_s = time.perf_counter() - sample.sent
    if not sample.error and not sample.output_tokens:
        sample.error = "the stream ended without usage or tokens"
    return sample


async def _read(response: httpx.Response, sample: Sample) -> None:
    before = 0.0
    chunks = 0
    pending = b""
    async for data in response.aiter_raw():
        pending += data
        *lines, pending = pending.split(b"\n")  # never splitlines: JSON may hold other line separators
        for line in lines:
            if not line.startswith(b"data:") or line[5:].strip() in (b"", b"[DONE]"):
                continue
            chunk = json.loads(line[5:])
            if "error" in chunk:
                sample.error = str(chunk["error"])[:200]
                return
            now = time.perf_counter() - sample.sent
            if any(choice.get("text") for choice in chunk.get("choices", ())):
                chunks += 1
                if chunks == 1:
                    sample.first_s = now
                else:
                    sample.gaps_s.append(now - before)
                before = now
            usage = chunk.get("usage") or {}
            sample.prompt_tokens = usage.get("prompt_tokens", sample.prompt_tokens)
            sample.output_tokens = usage.get("completion_tokens", sample.output_tokens)
    if not sample.output_tokens:
        sample.output_tokens = chunks  # a server without usage: one token a chunk is the best guess
