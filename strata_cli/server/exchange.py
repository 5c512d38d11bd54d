"""Exchange: the sequences of one HTTP request, and everything that can happen to them as one queue on the event loop.

Engine threads, the preparing thread, the watcher of the socket and timers all post here; only the handler reads.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

from strata_engine.chat import ChatRequest, TokenRequest
from strata_engine.config import SamplingParams
from strata_engine.errors import LlmrunError
from strata_engine.events import Event, Reasoning, Started, Text
from strata_engine.runtime.api import Service, Sink, Stream

Wanted = tuple[ChatRequest | TokenRequest, SamplingParams]


@dataclass(frozen=True)
class Arrived:
    """An event of sequence `index`."""

    index: int
    event: Event


@dataclass(frozen=True)
class Prepared:
    """All sequences were accepted."""


@dataclass(frozen=True)
class Broken:
    """The request cannot be answered (further): refused, failed, timed out or the server goes down."""

    error: LlmrunError


@dataclass(frozen=True)
class Gone:
    """The client closed its connection."""


Item = Arrived | Prepared | Broken | Gone


class Exchange:
    """Made on the event loop. post, submit and close may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Item] = asyncio.Queue()
        self._lock = threading.Lock()
        self._streams: list[Stream] = []
        self._closed = False
        self.phase = "queued"

    def post(self, item: Item) -> None:
        """Put something into the queue; after the loop has ended there is nobody to tell."""
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)
        except RuntimeError:
            self.close()

    def submit(self, service: Service, model: str, wanted: list[Wanted]) -> None:
        """Start the sequences, in a worker thread. A client that left meanwhile stops them at once."""
        for index, (request, params) in enumerate(wanted):
            if self._closed:
                return
            stream = service.stream(model, request, params, self._sink(index))
            with self._lock:
                self._streams.append(stream)
                late = self._closed
            if late:
                stream.close()

    def close(self) -> None:
        """Cancel whatever still runs or waits."""
        with self._lock:
            self._closed = True
            streams, self._streams = self._streams, []
        for stream in streams:
            stream.close()

    async def next(self, wait_s: float) -> Item | None:
        """The next thing that happened; None when nothing did for `wait_s` seconds."""
        try:
            item = self._queue.get_nowait()
        except asyncio.QueueEmpty:
            try:
                item = await asyncio.wait_for(self._queue.get(), wait_s)
            except asyncio.TimeoutError:
                return None
        self._note(item)
        return item

    def more(self) -> list[Item]:
        """What has happened meanwhile, without waiting."""
        items: list[Item] = []
        while not self._queue.empty():
            items.append(self._queue.get_nowait())
            self._note(items[-1])
        return items

    def _note(self, item: Any) -> None:
        if isinstance(item, Arrived):
            if isinstance(item.event, Text | Reasoning):
                self.phase = "decode"
            elif isinstance(item.event, Started) and self.phase == "queued":
                self.phase = "prefill"

    def _sink(self, index: int) -> Sink:
        return lambda event: self.post(Arrived(index, event))
