"""SequenceStream: the events of one sequence on their way from the engine's thread to whoever asked."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

from strata_engine.events import Event, Failed, Finish
from strata_engine.runtime.api import Sink


class SequenceStream:
    """The Stream of runtime/api.py. With a sink the events go there, and iterating only waits for the end."""

    def __init__(self, sequence_id: str, cancel: Callable[[str], bool], sink: Sink | None = None) -> None:
        self.sequence_id = sequence_id
        self._cancel = cancel
        self._sink = sink
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._ended = False

    def put(self, event: Event) -> None:
        """Called by the engine's thread only. Raises whatever the sink raises."""
        last = isinstance(event, (Finish, Failed))
        try:
            if self._sink is None:
                self._events.put(event)
            else:
                self._sink(event)
        finally:
            if last:
                self._events.put(None)

    def __iter__(self) -> Iterator[Event]:
        """Blocks for each event; ends after Finish; raises the error of Failed."""
        while not self._ended:
            event = self._events.get()
            if event is None:
                self._ended = True
            elif isinstance(event, Failed):
                self._ended = True
                raise event.error
            else:
                yield event

    def close(self) -> None:
        """Cancel if still running; a Finish with reason "cancelled" follows."""
        self._cancel(self.sequence_id)
