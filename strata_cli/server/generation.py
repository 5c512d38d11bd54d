"""Generation: the answer to one generating request, streamed or whole.

One coroutine owns the request: it prepares it in a worker thread, turns events into chunks, keeps the line alive, and
whatever ends it (finish, error, closed socket, time-out, shutdown) closes all its sequences.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from strata_cli.server import sse
from strata_cli.server.errors import BadField, HttpFault, fail, headers_of, shutting_down
from strata_cli.server.exchange import Arrived, Broken, Exchange, Gone, Item, Prepared
from strata_cli.server.images import fetched, holds_images
from strata_cli.server.openai.call import Call
from strata_cli.server.openai.writer import Chunk, Writer
from strata_cli.server.state import ServerState
from strata_engine.chat import ChatRequest
from strata_engine.errors import LlmrunError
from strata_engine.events import Failed, Finish, Reasoning, Text
from strata_engine.runtime.api import LoadedModel

log = logging.getLogger(__name__)
CLIENT_GONE = 499  # the number other servers log for it; never sent


class MakeWriter(Protocol):
    """Builds the family's writer once the model is known (in a worker thread)."""

    def __call__(self, server: ServerState, call: Call, shown: str, model: LoadedModel) -> Writer: ...


class Generation(Response):
    """An ASGI response that runs sequences."""

    def __init__(self, server: ServerState, call: Call, make_writer: MakeWriter) -> None:
        super().__init__(None)
        self._server, self._call, self._make_writer = server, call, make_writer
        self._began = time.monotonic()
        self._last: dict[int, float] = {}
        self._shown = ""
        self._open = 0
        self._queue_s = 0.0
        self._writer: Writer | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; always leaves nothing running."""
        loop = asyncio.get_running_loop()
        exchange = Exchange()
        self._server.live.add(exchange)
        watcher = asyncio.create_task(_watch(receive, exchange))
        timer = self._start_timer(loop, exchange)
        try:
            loop.run_in_executor(self._server.workers, self._prepare, exchange)
            answer = self._stream if self._call.stream else self._plain
            code = await answer(exchange, send)
        finally:
            exchange.close()
            watcher.cancel()
            if timer:
                timer.cancel()
            self._server.live.discard(exchange)
        if code == CLIENT_GONE:
            self._server.metrics.cancelled(exchange.phase)
        scope["llmrun"].update(model=self._shown, code=code)

    def _prepare(self, exchange: Exchange) -> None:
        """Worker thread: find and load the model, tokenise, queue. The result is posted."""
        try:
            served = self._server.names.find(self._call.model)
            self._shown = served.shown
            model = self._server.names.load(served)
            call = self._call = self._with_images(model)
            wanted = call.sequences(model)
            self._open = len(wanted)
            self._writer = self._make_writer(self._server, self._call, served.shown, model)
            exchange.submit(self._server.service, model.name, wanted)
            exchange.post(Prepared())
        except LlmrunError as error:
            exchange.post(Broken(error))
        except Exception:  # noqa: BLE001 - request handler: the client gets a 500, the log the reason
            log.exception("request failed while it was prepared")
            exchange.post(Broken(HttpFault(500, "internal", "internal error")))

    def _with_images(self, model: LoadedModel) -> Call:
        """The call with the bytes of linked images. Raises BadField: a model without vision, links not allowed."""
        call = self._call
        if not any(map(holds_images, call.requests)):
            return call
        if "vision" not in model.capabilities:
            raise BadField("messages", f"the model {self._shown} has no vision", "unsupported_value")
        allowed = self._server.options.image_links
        return replace(
            call, requests=tuple(fetched(r, allowed) if isinstance(r, ChatRequest) else r for r in call.requests)
        )

    def _start_timer(self, loop: asyncio.AbstractEventLoop, exchange: Exchange) -> asyncio.TimerHandle | None:
        limit_s = self._server.options.request_timeout_s
        if limit_s is None:
            return None
        late = HttpFault(504, "timeout", f"the request took longer than {limit_s:g} s", {"timeout_s": limit_s})
        return loop.call_later(limit_s, exchange.post, Broken(late))

    async def _plain(self, exchange: Exchange, send: Send) -> int:
        chunks: list[Chunk] = []
        while True:
            item = await exchange.next(3600.0)
            if isinstance(item, Gone):
                return CLIENT_GONE
            if isinstance(item, Broken):
                return await self._refuse(send, item.error)
            if isinstance(item, Arrived):
                error = self._take(item, chunks)
                if error:
                    return await self._refuse(send, error)
            if self._writer and self._open == 0:
                body = sse.dumps(self._writer.reply(chunks))
                await self._send_whole(send, 200, body, {**self._headers(), **self._times()})
                return 200

    async def _stream(self, exchange: Exchange, send: Send) -> int:
        backlog = await self._until_accepted(exchange)
        if backlog and isinstance(backlog[-1], Gone):
            return CLIENT_GONE
        if backlog and isinstance(backlog[-1], Broken):
            return await self._refuse(send, backlog[-1].error)
        await send({"type": "http.response.start", "status": 200, "headers": _raw({**sse.HEADERS, **self._headers()})})
        items = backlog
        while True:
            data, code = self._frames(items)
            if code is None:
                if data:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                first = await exchange.next(self._server.options.keep_alive_s)
                if first is None:
                    await send({"type": "http.response.body", "body": sse.KEEP_ALIVE, "more_body": True})
                items = [first, *exchange.more()] if first else []
                continue
            if code != CLIENT_GONE:
                await send({"type": "http.response.body", "body": data, "more_body": False})
            return code

    async def _until_accepted(self, exchange: Exchange) -> list[Item]:
        """What happened until the sequences were accepted or refused, or it is time for headers."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._server.options.headers_after_s
        backlog: list[Item] = []
        while (left := deadline - loop.time()) > 0:
            item = await exchange.next(left)
            if item is None or isinstance(item, Prepared):
                return backlog
            backlog.append(item)
            if not isinstance(item, Arrived):
                return backlog
        return backlog

    def _frames(self, items: list[Item]) -> tuple[bytes, int | None]:
        """Bytes for the client, and a status once the stream is over."""
        chunks: list[Chunk] = []
        for item in items:
            error = item.error if isinstance(item, Broken) else None
            if isinstance(item, Gone):
                return b"", CLIENT_GONE
            if isinstance(item, Arrived):
                error = self._take(item, chunks)
            if error:
                # The headers are out, so the last event says what happened; no [DONE] as if all was well.
                status, body = fail(error)
                return sse.frames([*chunks, body]), status
        if self._writer and self._open == 0:
            return sse.frames([*chunks, *self._writer.end()]) + sse.DONE, 200
        return sse.frames(chunks), None

    def _take(self, item: Arrived, chunks: list[Chunk]) -> LlmrunError | None:
        """Add the event's chunks; an error if it ends the request."""
        event = item.event
        if isinstance(event, Failed):
            return event.error
        if isinstance(event, Finish):
            if event.reason == "cancelled":  # not by this client: it is still there
                return shutting_down() if self._server.draining else _unloaded()
            self._open -= 1
            self._queue_s = max(self._queue_s, event.timings.queue_s)
            self._server.metrics.finished(self._shown, event, time.monotonic() - self._began)
        elif isinstance(event, Text | Reasoning):
            self._measure(item.index, len(event.tokens))
        if self._writer is None:
            raise RuntimeError("an event came before its writer")
        chunks += self._writer.write(item.index, event)
        return None

    def _measure(self, index: int, tokens: int) -> None:
        now = time.monotonic()
        before = self._last.get(index)
        self._last[index] = now
        if before is None:
            self._server.metrics.first_token(self._shown, now - self._began)
        elif tokens:
            self._server.metrics.gap(self._shown, now - before, tokens)

    async def _refuse(self, send: Send, error: LlmrunError) -> int:
        status, body = fail(error)
        await self._send_whole(send, status, sse.dumps(body), headers_of(error))
        return status

    async def _send_whole(self, send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
        fields = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        await send({"type": "http.response.start", "status": status, "headers": _raw(fields)})
        await send({"type": "http.response.body", "body": body})

    def _headers(self) -> dict[str, str]:
        headers = {"x-llmrun-model": header_text(self._shown)} if self._shown else {}
        if self._call.ignored:
            headers["x-llmrun-ignored"] = header_text(",".join(self._call.ignored))
        return headers

    def _times(self) -> dict[str, str]:
        spent = round((time.monotonic() - self._began) * 1e3)
        return {"openai-processing-ms": str(spent), "x-llmrun-queue-ms": str(round(self._queue_s * 1e3))}


async def _watch(receive: Receive, exchange: Exchange) -> None:
    """The body was read, so the only message left is the client's leaving."""
    while (await receive())["type"] != "http.disconnect":
        continue
    exchange.post(Gone())


def _unloaded() -> HttpFault:
    return HttpFault(503, "cancelled", "the sequence was cancelled: its model was unloaded")


def header_text(text: str) -> str:
    """A header value: printable ASCII, at most 1000 characters."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:1000]


def _raw(headers: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), str(value).encode("latin-1")) for name, value in headers.items()]
