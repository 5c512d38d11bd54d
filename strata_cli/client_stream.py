"""RemoteStream: one sequence on a server, read from its event stream."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from strata_cli.client_wire import ChunkReader
from strata_engine.errors import LlmrunError, ServerError
from strata_engine.events import Event, Failed
from strata_engine.runtime.api import Sink


class RemoteStream:
    """The Stream of runtime/api.py. With a sink a thread of its own reads, and iterating waits for the end."""

    def __init__(self, response: httpx.Response, sink: Sink | None = None) -> None:
        self.sequence_id = response.headers.get("x-request-id", "")
        self._response, self._reader = response, ChunkReader()
        self._closed = threading.Event()
        self._events = self._read()
        self._pump = threading.Thread(target=self._feed, args=(sink,), daemon=True) if sink else None
        if self._pump:
            self._pump.start()

    def __iter__(self) -> Iterator[Event]:
        """Blocks for each event; ends after Finish; raises ServerError when the line breaks."""
        if self._pump:
            self._pump.join()
            return
        yield from self._events

    def close(self) -> None:
        """Hang up: the server cancels the sequence when it sees the socket close."""
        self._closed.set()
        line = self._response.extensions.get("network_stream")
        peer = line.get_extra_info("socket") if line is not None else None
        if peer is not None:
            with contextlib.suppress(OSError):  # the other side may have closed it already
                peer.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for data

    def _feed(self, sink: Sink) -> None:
        try:
            for event in self._events:
                sink(event)
        except LlmrunError as error:
            sink(Failed(error))

    def _read(self) -> Iterator[Event]:
        try:
            for value in self._values():
                yield from self._reader.feed(value)
            yield self._reader.cancelled() if self._closed.is_set() else self._reader.end()
        finally:
            self._response.close()

    def _values(self) -> Iterator[dict[str, Any]]:
        """JSON of each event up to [DONE]; quietly less after close()."""
        done = False
        try:
            for line in self._response.iter_lines():
                if line.startswith("data: [DONE]"):
                    done = True
                elif line.startswith("data: "):
                    yield json.loads(line[6:])
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            if not self._closed.is_set():
                raise ServerError(f"the connection to the server broke: {error or type(error).__name__}") from error
        except ValueError as error:
            raise ServerError("the server sent an event that is not JSON") from error
        if not done and not self._closed.is_set():
            raise ServerError("the server closed the connection in the middle of the answer")
