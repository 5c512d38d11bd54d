"""Events of a step reach a reader in their order, whether they come one by one or together."""

from __future__ import annotations

import pytest

from strata_engine.errors import LlmrunError
from strata_engine.events import Failed, Finish, Text, Usage
from strata_engine.runtime.stream import SequenceStream

END = Finish("stop", Usage(1, 2), None)


def stream(sink=None) -> SequenceStream:
    return SequenceStream("a", lambda _: True, sink)


def test_events_put_together_come_in_order_and_not_before_the_end_of_it():
    found = stream()
    found.put(Text("a"))
    with found.together():
        found.put(Text("b"))
        found.put(Text("c"))
        assert found._events.qsize() == 1
    assert found._events.qsize() == 2
    found.put(END)
    assert list(found) == [Text("a"), Text("b"), Text("c"), END]


@pytest.mark.parametrize("last", [END, Failed(LlmrunError("no"))], ids=["finish", "failed"])
def test_the_end_inside_lets_go_of_what_came_before(last):
    found = stream()
    with found.together():
        found.put(Text("b"))
        found.put(last)
    if last is END:
        assert list(found) == [Text("b"), END]
    else:
        seen = iter(found)
        assert next(seen) == Text("b")
        with pytest.raises(LlmrunError, match="no"):
            next(seen)


def test_what_was_put_before_a_fault_is_not_lost():
    found = stream()
    with pytest.raises(ZeroDivisionError), found.together():
        found.put(Text("b"))
        raise ZeroDivisionError
    found.put(END)
    assert list(found) == [Text("b"), END]


def test_a_sink_gets_each_event_at_once():
    seen = []
    found = stream(seen.append)
    with found.together():
        found.put(Text("b"))
        assert seen == [Text("b")]
