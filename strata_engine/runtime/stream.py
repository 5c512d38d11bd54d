"""SequenceStream: the events of one sequence on their way from the engine's thread to whoever asked."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from strata_engine.events import Event, Failed, Finish
from strata_engine.runtime.api import Sink


class SequenceStream:
    """The Stream of runtime/api.py. With a sink the events go there, and iterating only waits for the end."""

    def __init__(self, sequence_id: str, cancel: Callable[[str], bool], sink: Sink | None = None) -> None:
        self.sequence_id = sequence_id
        self._cancel = cancel
        self._sink = sink
        self._events: queue.SimpleQueue[list[Event] | None] = queue.SimpleQueue()
        self._held: list[Event] | None = None
        self._ended = False

    def put(self, event: Event) -> None:
        """Called by the engine's thread only. Raises whatever the sink raises."""
        last = isinstance(event, (Finish, Failed))
        try:
            if self._sink is not None:
                self._sink(event)
            elif self._held is not None and not last:
                self._held.append(event)
            else:
                self._release()
                self._events.put([event])
        finally:
            if last:
                self._events.put(None)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Events put inside reach whoever iterates in one go: a step may give several tokens, and waking costs."""
        self._held = []
        try:
            yield
        finally:
            self._release()
            self._held = None

    def _release(self) -> None:
        if self._held:
            held, self._held = self._held, []
            self._events.put(held)

    def __iter__(self) -> Iterator[Event]:
        """Blocks for each event; ends after Finish; raises the error of Failed."""
        while not self._ended:
            events = self._events.get()
            if events is None:
                self._ended = True
                return
            for event in events:
                if isinstance(event, Failed):
                    self._ended = True
                    raise event.error
                yield event

    def close(self) -> None:
        """Cancel if still running; a Finish with reason "cancelled" follows."""
        self._cancel(self.sequence_id)
