"""Stop strings with hold-back."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strata_engine.text.stop import StopFilter
from tests.support.cutting import cases, cut, ways

LETTERS = st.text("ab", max_size=14)
STOPS = st.lists(st.text("ab", max_size=4), max_size=4)


def run(pieces: list[str], stops: list[str], include: bool = False) -> tuple[str, str | None]:
    stop = StopFilter(stops, include)
    text = ""
    for piece in pieces:
        text += stop.feed(piece)
        if stop.matched is not None:
            return text, stop.matched
    return text + stop.close(), None


@pytest.mark.parametrize("case", cases("stop_cases"), ids=lambda case: case["id"])
def test_every_way_to_cut_the_text_gives_the_same_output(case: dict):
    reason = {None: "length"}
    found = {
        (text, reason.get(matched, "stop")) for text, matched in (run(p, case["stops"]) for p in ways(case["text"]))
    }
    assert found == {(case["output"], case["reason"])}


@settings(deadline=None)
@given(LETTERS, STOPS, st.booleans(), st.sets(st.integers(1, 13)))
@example("abab", ["bab", "ab"], False, {2})
def test_any_pieces_give_what_single_characters_give(text: str, stops: list[str], include: bool, places: set[int]):
    pieces = cut(text, sorted(p for p in places if p < len(text)))
    assert run(pieces, stops, include) == run(list(text), stops, include) == run([text], stops, include)


@settings(deadline=None)
@given(LETTERS, STOPS)
def test_nothing_leaves_that_a_stop_string_would_have_cut(text: str, stops: list[str]):
    output, matched = run(list(text), stops)
    if matched is None:
        assert output == text
        assert not any(stop and stop in text for stop in stops)
    else:
        assert text.startswith(output + matched)


@settings(deadline=None)
@given(LETTERS, STOPS)
def test_no_more_is_held_back_than_may_start_a_stop_string(text: str, stops: list[str]):
    stop = StopFilter(stops)
    sent = ""
    for character in text:
        sent += stop.feed(character)
        if stop.matched is not None:
            return
    held = text[len(sent) :]
    assert held == "" or any(s.startswith(held) and s != held for s in stops)


def test_of_strings_complete_at_one_place_the_longest_counts():
    assert run(["xabc"], ["bc", "abc"]) == ("x", "abc")


def test_the_string_complete_first_counts():
    assert run(["abcde"], ["abcde", "bc"]) == ("a", "bc")


def test_the_stop_string_is_part_of_the_text_when_asked_for():
    assert run(["one", " STOP two"], ["STOP"], include=True) == ("one STOP", "STOP")


def test_a_very_long_stop_string_costs_little():
    stop = StopFilter(["a" * 100_000 + "b"])
    assert "".join(stop.feed("a" * 50) for _ in range(20)) == ""
    assert stop.close() == "a" * 1000
