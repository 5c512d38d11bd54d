"""Runs the application on sockets until a signal: then drains, ends what is left with an error event, and returns."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from strata_cli.server.state import ServerState

_GRACE_S = 5.0  # after the error events: for slow clients to read them


class Server(uvicorn.Server):
    """First signal: no new connections, open requests may end within `drain_s`. A second one ends them at once.

    `on_ready` is called when connections are accepted; `on_drain` with the number of open requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        state: ServerState,
        on_ready: Callable[[], None],
        on_drain: Callable[[int], None] = lambda count: None,
        tls: tuple[str, str] | None = None,
    ) -> None:
        config = uvicorn.Config(
            app, http="h11", loop="asyncio", ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, timeout_keep_alive=75, timeout_graceful_shutdown=None, backlog=2048,
            ssl_keyfile=tls[0] if tls else None, ssl_certfile=tls[1] if tls else None,
        )  # fmt: skip
        super().__init__(config)
        self._state, self._on_ready, self._on_drain = state, on_ready, on_drain
        self.stopped_by = 0  # the signal's number
        self._event_loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then say so."""
        self._event_loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then error events, then close whatever is still open."""
        loop = asyncio.get_running_loop()
        self._state.draining = True
        if self._state.live:
            self._on_drain(len(self._state.live))
        timer = loop.call_later(self._state.options.drain_s, self._state.end_all)
        last = loop.call_later(self._state.options.drain_s + _GRACE_S, setattr, self, "force_exit", True)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            last.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As the base class, but the caller makes the exit code: the signal is not raised again."""
        with super().capture_signals():
            try:
                yield
            finally:
                self.stopped_by = self._captured_signals[0] if self._captured_signals else 0
                self._captured_signals.clear()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Signal handler, also called by tests."""
        again = self.should_exit
        self._captured_signals.append(sig)
        self.should_exit = True
        if again and self._event_loop is not None:
            if self._state.live:
                self._event_loop.call_soon_threadsafe(self._state.end_all)
            elif sig == signal.SIGINT:
                self.force_exit = True
