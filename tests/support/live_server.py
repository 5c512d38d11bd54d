"""A real server on loopback in a thread, over any Service; stops with the `with` block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from strata_cli.address import Address
from strata_cli.server.app import create_app
from strata_cli.server.names import Names, Served
from strata_cli.server.options import ServerOptions
from strata_cli.server.run import Server
from strata_cli.server.sockets import bind_tcp
from strata_cli.server.state import ServerState
from strata_engine.runtime.api import Service


@dataclass(frozen=True)
class Live:
    """One running server: its base URL, a plain HTTP client, the state for a look inside."""

    url: str
    http: httpx.Client
    state: ServerState
    server: Server


@contextmanager
def live_server(
    service: Service, options: ServerOptions | None = None, served: Sequence[Served] = (), **names: Any
) -> Iterator[Live]:
    """Serve `tiny` (or `served`) until the block ends."""
    options = options or ServerOptions(headers_after_s=0.5, drain_s=1.0)
    table = Names(service, served or (Served("tiny", ("tiny", "tiny-alias")),), **names)
    state = ServerState.create(service, table, options)
    socket = bind_tcp(Address("127.0.0.1", 0))
    ready = threading.Event()
    server = Server(create_app(state), state, ready.set)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([socket])), name="server")
    thread.start()
    try:
        if not ready.wait(10):
            raise RuntimeError("the server did not start")
        url = f"http://127.0.0.1:{socket.getsockname()[1]}"
        with httpx.Client(base_url=url, trust_env=False, timeout=30) as http:
            yield Live(url, http, state, server)
    finally:
        server.should_exit = True
        thread.join(20)
        state.close()
