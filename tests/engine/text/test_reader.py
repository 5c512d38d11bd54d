"""Generated tokens to events."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_engine.events import Reasoning, Text, Token
from strata_engine.text.reader import StreamReader
from strata_engine.text.reasoning import STATES, ThinkSplitter
from strata_engine.text.stop import StopFilter
from tests.support.cutting import cut

HIDDEN = 9999
PIECES = st.lists(
    st.sampled_from(
        [b"<think>", b"</think>", b"\n", b"a", b"b", b" END", b"\xf0\x9f", b"\x98\x80", b"\xff", b"</", b""]
    ),
    max_size=10,
)

STOPS = st.sampled_from([(), ("END",), ("b", "a\n"), ("",)])


def reader(
    pieces: Sequence[bytes], state: str = "answer", stop: Sequence[str] = (), include: bool = False
) -> StreamReader:
    """A reader whose token n has the bytes pieces[n]; token HIDDEN is a control token."""
    spelled = dict(enumerate(pieces)) | {HIDDEN: b"<|hidden|>"}
    return StreamReader(spelled.__getitem__, {HIDDEN}.__contains__, ThinkSplitter(state), StopFilter(stop, include))


def read(pieces: Sequence[bytes], state: str, stop: Sequence[str], places: Sequence[int] = (), include: bool = False):
    """(reasoning, answer, stop string, ids of the reply) of tokens that come in the groups `places` cuts."""
    stream = reader(pieces, state, stop, include)
    events: list[Text | Reasoning] = []
    ids = list(range(len(pieces)))
    for group in (ids[a:b] for a, b in zip([0, *places], [*places, len(ids)], strict=True)):
        events += stream.feed([Token(i) for i in group])
        if stream.stopped is not None:
            break
    last, rest = stream.close()
    events += last
    used = [t.id for e in events for t in e.tokens] + [t.id for t in rest]
    return (
        "".join(e.text for e in events if isinstance(e, Reasoning)),
        "".join(e.text for e in events if isinstance(e, Text)),
        stream.stopped,
        used,
    )


@settings(deadline=None)
@given(PIECES, st.sampled_from(STATES), STOPS, st.sets(st.integers(1, 9)), st.booleans())
def test_the_reply_does_not_depend_on_how_many_tokens_come_at_once(pieces, state, stop, places, include):
    groups = sorted(p for p in places if p < len(pieces))
    one_by_one = list(range(1, len(pieces)))
    assert read(pieces, state, stop, groups, include) == read(pieces, state, stop, one_by_one, include)


@settings(deadline=None)
@given(PIECES, st.sampled_from(STATES), st.sampled_from([(), ("END",), ("b",)]), st.sets(st.integers(1, 40)))
def test_the_text_does_not_depend_on_how_it_is_cut_into_tokens(pieces, state, stop, places):
    data = b"".join(pieces)
    other = cut(data, sorted(p for p in places if p < len(data)))
    assert read(pieces, state, stop)[:3] == read(other, state, stop)[:3]


@settings(deadline=None)
@given(PIECES, st.sampled_from(STATES))
def test_every_token_is_accounted_for_once_and_in_order(pieces, state):
    assert read(pieces, state, (), range(1, len(pieces)))[3] == list(range(len(pieces)))


def test_half_characters_wait_and_their_tokens_ride_on_the_next_text():
    stream = reader([b"\xf0\x9f", b"\x98\x80", b"x"])
    assert stream.feed([Token(0)]) == []
    assert stream.feed([Token(1)]) == [Text("\U0001f600", (Token(0), Token(1)))]
    assert stream.feed([Token(2)]) == [Text("x", (Token(2),))]


def test_a_held_back_stop_start_rides_on_the_next_text():
    stream = reader([b"a E", b"N", b"T"], stop=["END"])
    assert stream.feed([Token(0)]) == [Text("a ", (Token(0),))]
    assert stream.feed([Token(1)]) == []
    assert stream.feed([Token(2)]) == [Text("ENT", (Token(1), Token(2)))]


def test_control_tokens_are_not_shown_but_counted():
    stream = reader([b"a", b"b"])
    assert stream.feed([Token(0), Token(HIDDEN), Token(1)]) == [Text("ab", (Token(0), Token(HIDDEN), Token(1)))]
    assert stream.feed([Token(HIDDEN)]) == []
    assert stream.close() == ([], (Token(HIDDEN),))


def test_a_stop_string_ends_the_reply_within_a_token():
    stream = reader([b"one EN", b"D two", b"three"], stop=["END"])
    assert stream.feed([Token(0), Token(1), Token(2)]) == [Text("one ", (Token(0),))]
    assert stream.stopped == "END"
    assert stream.close() == ([], (Token(1),)), "the token after the match is not part of the reply"


def test_the_stop_string_is_shown_when_asked_for():
    stream = reader([b"one END two"], stop=["END"], include=True)
    assert stream.feed([Token(0)]) == [Text("one END", (Token(0),))]


def test_stop_strings_do_not_apply_to_the_thinking():
    reasoning, answer, stopped, _ = read([b"first\n\nsecond", b"</think>\n\n", b"ok\n\nmore"], "thinking", ["\n\n"])
    assert (reasoning, answer, stopped) == ("first\n\nsecond", "ok", "\n\n")


def test_one_token_may_end_the_thought_and_begin_the_answer():
    stream = reader([b"plan</think>Hello"], "thinking")
    assert stream.feed([Token(0)]) == [Reasoning("plan", (Token(0),)), Text("Hello", ())]


def test_held_back_text_is_released_at_the_end():
    stream = reader([b">>>>>>> UP"], stop=[">>>>>>> UPD"])
    assert stream.feed([Token(0)]) == []
    assert stream.close() == ([Text(">>>>>>> UP", (Token(0),))], ())


def test_an_unfinished_character_ends_as_a_replacement_mark():
    stream = reader([b"ok\xe2\x98"])
    assert stream.feed([Token(0)]) == [Text("ok", (Token(0),))]
    assert stream.close() == ([Text("\ufffd", ())], ())


def test_a_cut_thought_is_thought_only():
    assert read([b"Let me see. 97 is</th"], "thinking", ())[:2] == ("Let me see. 97 is</th", "")


@pytest.mark.parametrize("state", ["answer", "maybe-thinking", "thinking"])
def test_numbers_of_a_token_are_kept(state: str):
    token = Token(0, -0.5, ((0, -0.5), (1, -1.0)))
    assert reader([b"a"], state).feed([token])[0].tokens == (token,)
