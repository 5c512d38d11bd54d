"""The ASGI application: routes of all families behind the Gate; unknown routes and methods as JSON."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from strata_cli.server.access import Gate
from strata_cli.server.errors import HttpFault, fail, headers_of
from strata_cli.server.native.routes import routes as native_routes
from strata_cli.server.openai.routes import routes as openai_routes
from strata_cli.server.requests import reply
from strata_cli.server.state import ServerState
from strata_engine.errors import LlmrunError


def create_app(server: ServerState) -> ASGIApp:
    """Everything one server answers."""
    routes = [*openai_routes(server), *native_routes(server)]
    inner = Starlette(routes=routes, exception_handlers={LlmrunError: _failed, HTTPException: _Unrouted(routes)})
    inner.router.redirect_slashes = False
    return Gate(inner, server)


async def _failed(request: Request, error: Exception) -> Response:
    if not isinstance(error, LlmrunError):
        raise error
    status, body = fail(error)
    return reply(body, status, headers_of(error))


class _Unrouted:
    """404 with the list of routes, 405 with the methods."""

    def __init__(self, routes: list[Route]) -> None:
        self._lines = sorted(f"{'/'.join(sorted(r.methods or ()))} {r.path}" for r in routes)

    async def __call__(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        where = f"{request.method} {request.url.path[:200]}"
        if error.status_code == 405:
            allow = [part.strip() for part in (error.headers or {}).get("Allow", "").split(",")]
            fault = HttpFault(405, "method_not_allowed", f"{where}: wrong method", {"allow": sorted(allow)})
        elif error.status_code == 404:
            fault = HttpFault(404, "route_not_found", f"no such route: {where}", {"routes": self._lines})
        else:
            fault = HttpFault(error.status_code, "http", str(error.detail))
        return await _failed(request, fault)
