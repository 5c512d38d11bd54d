"""From a Starlette request to a JSON object or a Call, and from a value to a JSON reply. Slow work goes to threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from strata_cli.server import body, sse
from strata_cli.server.errors import BadField
from strata_cli.server.openai.call import Call
from strata_cli.server.state import ServerState

T = TypeVar("T")
_INLINE_BYTES = 64 << 10  # parsing more than this would hold up other requests


async def read_json(request: Request, server: ServerState) -> dict[str, Any]:
    """The body as a JSON object. Raises HttpFault 400, 413 or 415."""
    body.check_headers(request.headers)
    raw = await body.read_bytes(request.stream(), server.options.body_limit_bytes)
    return await _maybe_thread(len(raw), body.parse, raw)


async def read_call(request: Request, server: ServerState, read: Callable[[dict[str, Any]], Call]) -> Call:
    """A generating body. Raises BadField; in strict mode (?strict=1 or --strict-api) unknown fields are faults too."""
    value = await read_json(request, server)
    call = await _maybe_thread(int(request.headers.get("content-length") or _INLINE_BYTES + 1), read, value)
    strict = server.options.strict or request.query_params.get("strict", "") not in ("", "0", "false")
    if strict and call.ignored:
        raise BadField(call.ignored[0], "unknown field (strict mode)", "unknown_field")
    return call


def reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON reply."""
    return Response(sse.dumps(value), status, headers, "application/json")


async def _maybe_thread(size: int, function: Callable[[Any], T], value: Any) -> T:
    if size <= _INLINE_BYTES:
        return function(value)
    return await run_in_threadpool(function, value)
