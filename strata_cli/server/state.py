"""ServerState: what all routes of one server share. No process globals."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from strata_cli.server.errors import shutting_down
from strata_cli.server.exchange import Broken, Exchange
from strata_cli.server.metrics import Metrics
from strata_cli.server.names import Names
from strata_cli.server.options import ServerOptions
from strata_engine.runtime.api import Service

_WORKERS = 64  # threads that prepare requests; most wait for a load or tokenise


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_WORKERS, "prepare")


@dataclass
class ServerState:
    """Made by the serve command; `live` and `draining` belong to the event loop."""

    service: Service
    names: Names
    options: ServerOptions
    metrics: Metrics
    live: set[Exchange] = field(default_factory=set)
    draining: bool = False
    workers: ThreadPoolExecutor = field(default_factory=_pool)
    log_line: Callable[[str], None] | None = None
    started_at: float = field(default_factory=time.time)

    @classmethod
    def create(cls, service: Service, names: Names, options: ServerOptions) -> ServerState:
        """With metrics of its own."""
        return cls(service, names, options, Metrics(service, names))

    def end_all(self) -> None:
        """Every request still open gets an error as its last word."""
        for exchange in list(self.live):
            exchange.post(Broken(shutting_down()))

    def close(self) -> None:
        """Free the threads; the Service belongs to whoever made it."""
        self.workers.shutdown(wait=False, cancel_futures=True)
