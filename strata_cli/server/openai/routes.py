"""Routes of the OpenAI family, each with and without /v1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from strata_cli.server.generation import Generation
from strata_cli.server.openai import chat, completions, models
from strata_cli.server.openai.call import Call
from strata_cli.server.openai.labels import Labels
from strata_cli.server.openai.writer import Writer
from strata_cli.server.requests import read_call, reply
from strata_cli.server.state import ServerState
from strata_engine.chat import TokenRequest
from strata_engine.runtime.api import LoadedModel

Endpoint = Callable[[Request], Awaitable[Response]]


def routes(server: ServerState) -> list[Route]:
    """All of them."""

    async def chat_completions(request: Request) -> Response:
        return Generation(server, await read_call(request, server, chat.read), chat_writer)

    async def raw_completions(request: Request) -> Response:
        return Generation(server, await read_call(request, server, completions.read), completion_writer)

    async def list_models(request: Request) -> Response:
        entries = await run_in_threadpool(server.names.all)
        return reply(models.listing([models.entry(served, model) for served, model in entries]))

    async def one_model(request: Request) -> Response:
        served = await run_in_threadpool(server.names.find, request.path_params["id"])
        return reply(models.entry(served, await run_in_threadpool(server.names.loaded, served)))

    return [
        *_both("/chat/completions", chat_completions, "POST"),
        *_both("/completions", raw_completions, "POST"),
        *_both("/models", list_models, "GET"),
        *_both("/models/{id:path}", one_model, "GET"),
    ]


def _both(path: str, endpoint: Endpoint, method: str) -> list[Route]:
    return [Route(prefix + path, endpoint, methods=[method]) for prefix in ("/v1", "")]


def chat_writer(server: ServerState, call: Call, shown: str, model: LoadedModel) -> Writer:
    """Worker thread: the writer of a chat call."""
    return chat.ChatWriter(call, shown, _labels(server, call, model))


def completion_writer(server: ServerState, call: Call, shown: str, model: LoadedModel) -> Writer:
    """Worker thread: the writer of a completions call, with the prompts' texts when they are echoed."""
    echoes = tuple(_prompt_text(server, request, model) for request in call.requests) if call.echo else ()
    return completions.CompletionWriter(call, shown, _labels(server, call, model), echoes)


def _labels(server: ServerState, call: Call, model: LoadedModel) -> Labels:
    wanted = call.given.get("logprobs") is not None
    return Labels(server.service.text(model.name).tokenizer if wanted else None)


def _prompt_text(server: ServerState, request: object, model: LoadedModel) -> str:
    if not isinstance(request, TokenRequest):
        return ""
    tokenizer = server.service.text(model.name).tokenizer
    if request.text is not None or tokenizer is None:
        return request.text or ""
    return tokenizer.decode(request.ids or ())
