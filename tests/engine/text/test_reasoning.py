"""The split into thinking and answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_engine.text.reasoning import STATES, ThinkSplitter
from tests.support.cutting import cases, cut, ways

# Text made of what matters to the splitter, whole and in fragments.
FRAGMENTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "</", "think>", "/", "a", " ", "\n", "\r\n", "</thi", "b <"]),
    max_size=8,
).map("".join)
# Tool calls are another stage's work: here only cases whose content is not cut out of calls.
SPLIT_CASES = [c for c in cases("parser_cases") if "content" in c["expect"] and not c["expect"]["calls"]]


def split(pieces: list[str], start: str, tags: bool = True) -> tuple[str, str]:
    splitter = ThinkSplitter(start, tags)
    parts = [part for piece in pieces for part in splitter.feed(piece)] + splitter.close()
    assert all(text for _, text in parts)
    return "".join(t for thinking, t in parts if thinking), "".join(t for thinking, t in parts if not thinking)


@pytest.mark.parametrize("case", SPLIT_CASES, ids=lambda case: case["id"])
def test_every_way_to_cut_the_output_gives_the_same_parts(case: dict):
    found = {split(pieces, case["start"]) for pieces in ways(case["raw"])}
    assert {(r.strip(), c.strip()) for r, c in found} == {(case["expect"]["reasoning"], case["expect"]["content"])}
    assert len(found) == 1, "blanks do not depend on the cuts either"


def test_the_cases_left_out_are_those_with_tool_calls():
    left_out = {c["id"] for c in cases("parser_cases")} - {c["id"] for c in SPLIT_CASES}
    assert left_out == {"cut-call", "two-calls", "no-arguments", "think-then-call"}


def test_a_thought_before_a_tool_call_is_split_off():
    case = next(c for c in cases("parser_cases") if c["id"] == "think-then-call")
    assert {split(pieces, "thinking")[0] for pieces in ways(case["raw"])} == {"plan"}


@settings(deadline=None)
@given(FRAGMENTS, st.sampled_from(STATES), st.sets(st.integers(1, 50)))
def test_any_pieces_give_what_single_characters_give(text: str, start: str, places: set[int]):
    pieces = cut(text, sorted(p for p in places if p < len(text)))
    assert split(pieces, start) == split(list(text), start) == split([text], start)


@settings(deadline=None)
@given(FRAGMENTS, st.sampled_from(STATES))
def test_only_tags_and_the_blanks_around_them_are_dropped(text: str, start: str):
    reasoning, content = split([text], start)
    assert len(text) - len(reasoning + content) in range(len(text) + 1)
    dropped = text.replace("<think>", "").replace("</think>", "")
    assert "".join((reasoning + content).replace("<think>", "").replace("</think>", "").split()) == "".join(
        dropped.split()
    )


@pytest.mark.parametrize(
    ("raw", "start", "reasoning", "content"),
    [
        ("<think>\nplan\n</think>\n\nHello", "maybe-thinking", "plan\n", "Hello"),
        ("\n<think>plan</think>Hello", "maybe-thinking", "plan", "Hello"),
        ("<think>\n\n</think>\n\nHello", "maybe-thinking", "", "Hello"),
        ("</think>\n\nHello", "maybe-thinking", "", "Hello"),
        ("</think>Hello", "answer", "", "Hello"),
        ("<think>twice</think>Hello", "thinking", "twice", "Hello"),
        ("</think>Hello", "thinking", "", "Hello"),
        ("one <think> two</think>Hello", "thinking", "one <think> two", "Hello"),
        ("plan</think>\n\n  Hello", "thinking", "plan", "  Hello"),
        ("plan</think>a</think>b<think>c", "thinking", "plan", "a</think>b<think>c"),
        ("  Hello", "maybe-thinking", "", "  Hello"),
        ("<think>x", "answer", "", "<think>x"),
        ("<thin", "maybe-thinking", "", "<thin"),
        ("plan</thin", "thinking", "plan</thin", ""),
        ("   ", "maybe-thinking", "", "   "),
    ],
)
def test_parts_of(raw: str, start: str, reasoning: str, content: str):
    assert {split(pieces, start) for pieces in ways(raw)} == {(reasoning, content)}


def test_without_tags_all_text_is_answer_at_once():
    splitter = ThinkSplitter("answer", tags=False)
    assert splitter.answering
    assert splitter.feed("</think><think>x") == [(False, "</think><think>x")]


@pytest.mark.parametrize("start", STATES)
def test_plain_text_is_not_held_back(start: str):
    splitter = ThinkSplitter(start)
    assert splitter.feed("word") == [(start == "thinking", "word")]


def test_no_more_than_a_started_tag_is_held_back():
    splitter = ThinkSplitter("thinking")
    assert splitter.feed("a < b </thi") == [(True, "a < b ")]
    assert splitter.feed("s") == [(True, "</this")]


def test_an_unknown_start_state_is_an_error():
    with pytest.raises(ValueError, match="unknown start state"):
        ThinkSplitter("dreaming")
