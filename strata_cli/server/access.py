"""Gate: what every request passes before a route sees it.

In order: path prefix, Host check (DNS rebinding), CORS preflight, Origin check (a page on another site may not post to
localhost), key. It also stamps the reply's common headers, turns an unexpected fault into a 500 and counts the request.
"""

from __future__ import annotations

import hmac
import logging
import re
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strata_cli import __version__
from strata_cli.address import is_loopback
from strata_cli.server import sse
from strata_cli.server.errors import HttpFault, fail, headers_of
from strata_cli.server.options import ServerOptions
from strata_cli.server.state import ServerState
from strata_engine.errors import LlmrunError

log = logging.getLogger(__name__)
_OPEN_PATHS = ("/health", "/v1/health")
_METHODS = "GET, HEAD, POST, OPTIONS"
_EXPOSED = "x-request-id, x-llmrun-model, x-llmrun-ignored, x-llmrun-queue-ms, openai-processing-ms, retry-after"
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Gate:
    """Pure ASGI middleware around the routes."""

    def __init__(self, app: ASGIApp, server: ServerState) -> None:
        self._app, self._server = app, server
        self._keys = [key.encode() for key in server.options.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        began = time.monotonic()
        scope["llmrun"] = {"model": "", "code": 0}
        reply = _Reply(send, self._common(headers), scope["llmrun"])
        try:
            early = self._check(scope, headers)
            if early is None:
                await self._app(scope, receive, reply)
            else:
                await _answer(reply, *early)
        except LlmrunError as error:
            await _refuse(reply, error)
        except Exception:  # noqa: BLE001 - request handler: the client gets a 500, the log the reason
            log.exception("request failed path=%s", scope["path"])
            await _refuse(reply, HttpFault(500, "internal", "internal error"))
        self._count(scope, time.monotonic() - began)

    def _check(self, scope: Scope, headers: dict[str, str]) -> tuple[int, dict[str, str]] | None:
        """None = go on; or the whole answer to an OPTIONS request. Raises HttpFault."""
        _strip_prefix(scope, self._server.options.prefix)
        host = headers.get("host", "")
        if self._server.options.check_host and host and not is_loopback(_host_name(host)):
            raise HttpFault(
                403, "host_refused", f"this server is for this machine only, not for the host {host[:80]!r}"
            )
        origin = headers.get("origin")
        allowed = origin is None or origin_allowed(origin, host, self._server.options)
        if scope["method"] == "OPTIONS":
            return self._options(headers, allowed)
        if not allowed:
            raise HttpFault(403, "origin_refused", f"the origin {str(origin)[:80]!r} may not call this server")
        if self._keys and scope["path"] not in _OPEN_PATHS:
            self._check_key(headers)
        return None

    def _options(self, headers: dict[str, str], allowed: bool) -> tuple[int, dict[str, str]]:
        if "access-control-request-method" not in headers:
            return 204, {"allow": _METHODS}
        if not allowed:
            raise HttpFault(403, "origin_refused", "this origin may not call this server")
        found = {
            "access-control-allow-methods": _METHODS,
            "access-control-allow-headers": headers.get("access-control-request-headers", "*"),
            "access-control-max-age": "600",
        }
        if headers.get("access-control-request-private-network") == "true":
            found["access-control-allow-private-network"] = "true"
        return 204, found

    def _check_key(self, headers: dict[str, str]) -> None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # Every key is compared, so the time does not tell which one was near.
        good = [hmac.compare_digest(given.encode("latin-1", "replace"), key) for key in self._keys]
        if not any(good):
            text = "wrong API key" if given else "this server needs an API key (Authorization: Bearer KEY)"
            raise HttpFault(401, "invalid_api_key", text)

    def _common(self, headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        found = {"server": f"llmrun/{__version__}", "x-request-id": request_id}
        origin = headers.get("origin")
        if origin is not None:
            found["vary"] = "origin"
            if origin_allowed(origin, headers.get("host", ""), self._server.options):
                found |= {"access-control-allow-origin": origin, "access-control-expose-headers": _EXPOSED}
        return [(name.encode(), value.encode("latin-1")) for name, value in found.items()]

    def _count(self, scope: Scope, seconds: float) -> None:
        note: dict[str, Any] = scope["llmrun"]
        route = route_of(scope)
        self._server.metrics.request(route, note["model"], note["code"])
        if self._server.options.log_requests and self._server.log_line:
            self._server.log_line(
                f"{time.strftime('%H:%M:%S')} {scope['method']} {route} {note['code']} {seconds * 1e3:.0f} ms"
                + (f" model={note['model']}" if note["model"] else "")
            )


def origin_allowed(origin: str, host: str, options: ServerOptions) -> bool:
    """Loopback pages, our own pages and the listed origins."""
    if "*" in options.origins or origin in options.origins:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return False
    return is_loopback(parts.hostname) or (parts.netloc == host and not options.check_host)


def route_of(scope: Scope) -> str:
    """The route's own path, so that clients cannot invent labels."""
    if "endpoint" not in scope:
        return "other"
    path: str = scope["path"]
    for name, value in scope.get("path_params", {}).items():
        path = path.replace(str(value), "{" + name + "}")
    return path


def _strip_prefix(scope: Scope, prefix: str) -> None:
    if not prefix:
        return
    path: str = scope["path"]
    if path != prefix and not path.startswith(prefix + "/"):
        raise HttpFault(404, "not_found", f"no such route: {path[:200]}", {"prefix": prefix})
    scope["path"] = path.removeprefix(prefix) or "/"
    scope["raw_path"] = scope["path"].encode()


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


class _Reply:
    """send() that adds the common headers, notes the status and knows whether the reply has begun."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]], note: dict[str, Any]) -> None:
        self._send, self._headers, self._note = send, headers, note
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            self._note["code"] = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
        await self._send(message)


async def _refuse(reply: _Reply, error: LlmrunError) -> None:
    if reply.begun:
        return  # the status is out; the connection ends without a last chunk, which clients see as broken
    status, body = fail(error)
    data = sse.dumps(body)
    headers = {"content-type": "application/json", "content-length": str(len(data)), **headers_of(error)}
    await _answer(reply, status, headers, data)


async def _answer(reply: _Reply, status: int, headers: dict[str, str], body: bytes = b"") -> None:
    raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await reply({"type": "http.response.start", "status": status, "headers": raw})
    await reply({"type": "http.response.body", "body": body})
