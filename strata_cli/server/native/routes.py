"""Routes outside the OpenAI family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from strata_cli.server.metrics import CONTENT_TYPE
from strata_cli.server.native import status, text
from strata_cli.server.requests import read_json, reply
from strata_cli.server.state import ServerState

Handler = Callable[[ServerState, dict[str, Any]], dict[str, Any]]
_POSTS: tuple[tuple[str, Handler], ...] = (
    ("/tokenize", text.tokenize),
    ("/detokenize", text.detokenize),
    ("/apply-template", text.apply_template),
    ("/api/llmrun/v1/load", status.load),
    ("/api/llmrun/v1/unload", status.unload),
)


def routes(server: ServerState) -> list[Route]:
    """All of them; /metrics only when it is switched on."""

    async def root(request: Request) -> Response:
        return PlainTextResponse("llmrun is running\n")

    async def health(request: Request) -> Response:
        # Asks no engine: it must answer at once whatever they do.
        if server.draining:
            return reply({"status": "shutting down"}, 503, {"retry-after": "5"})
        return reply({"status": "ok"})

    async def metrics(request: Request) -> Response:
        return Response(await run_in_threadpool(server.metrics.text), media_type=CONTENT_TYPE)

    async def props(request: Request) -> Response:
        return reply(await run_in_threadpool(status.props, server, request.query_params.get("model", "")))

    async def slots(request: Request) -> Response:
        return reply(await run_in_threadpool(status.slots, server))

    async def own_status(request: Request) -> Response:
        return reply(await run_in_threadpool(status.status, server))

    found = [
        Route("/", root, methods=["GET"]),
        *(Route(prefix + "/health", health, methods=["GET"]) for prefix in ("", "/v1")),
        Route("/props", props, methods=["GET"]),
        Route("/slots", slots, methods=["GET"]),
        Route("/api/llmrun/v1/status", own_status, methods=["GET"]),
        *(Route(path, _post(server, handler), methods=["POST"]) for path, handler in _POSTS),
    ]
    return [*found, Route("/metrics", metrics, methods=["GET"])] if server.options.metrics else found


def _post(server: ServerState, handler: Handler) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        body = await read_json(request, server)
        return reply(await run_in_threadpool(handler, server, body))

    return endpoint
