"""The suffix automaton against brute force, and the drafts that follow from its counts."""

from __future__ import annotations

import random

import pytest

from strata_engine.core.sequence import Sequence
from strata_engine.draft.base import Ask
from strata_engine.draft.lookup import LookupDrafter
from strata_engine.draft.suffix import MOST, Automaton, SuffixIndex


def built(tokens: list[int]) -> Automaton:
    text = Automaton()
    for token in tokens:
        text.add(token)
    return text


def occurrences(tokens: list[int], part: list[int]) -> int:
    return sum(tokens[i : i + len(part)] == part for i in range(len(tokens) - len(part) + 1))


def longest_earlier(tokens: list[int]) -> int:
    """Length of the longest end of the text that occurs twice."""
    return max(n for n in range(len(tokens)) if n == 0 or occurrences(tokens, tokens[-n:]) > 1)


def state_of(text: Automaton, part: list[int]) -> int:
    state = 0
    for token in part:
        state = text._next(state, token)
    return state


@pytest.mark.parametrize("letters", [1, 2, 5])
def test_every_substring_is_there_and_the_link_is_the_longest_repeat(letters: int):
    rng = random.Random(letters)
    tokens = [rng.randrange(letters) for _ in range(60)]
    text = Automaton()
    for end, token in enumerate(tokens, 1):
        text.add(token)
        assert text.length[text.link[text.last]] == longest_earlier(tokens[:end])
    for start in range(60):
        for end in range(start + 1, 61):
            assert state_of(text, tokens[start:end]) > 0
    assert state_of(text, [letters]) == -1
    assert len(text.length) <= 2 * 60


def test_counts_are_occurrences():
    rng = random.Random(0)
    tokens = [rng.randrange(4) for _ in range(120)]
    text = built(tokens)
    for n in (1, 2, 3, 4):
        for start in range(0, 110, 7):
            part = tokens[start : start + n]
            assert text._seen[state_of(text, part)] == occurrences(tokens, part)


def propose(tokens: list[int], most: int = 8) -> tuple[int, ...]:
    index = SuffixIndex()
    index.extend(tokens)
    return index.propose(tokens, most).tokens


def test_the_commonest_way_wins_over_the_latest():
    often, once = [1, 2, 3, 40, 41], [1, 2, 3, 50, 51]
    assert propose([*often, 90, *often, 91, *once, 92, 1, 2, 3], 2) == (40, 41)
    assert propose([*often, 91, *once, 92, 1, 2, 3], 2) == (50, 51)  # among equals the newest


def test_a_longer_match_decides_where_it_knows_better():
    text = [7, 1, 2, 3, 60, 61, 1, 2, 3, 40, 41, 1, 2, 3, 40, 42, 7, 1, 2, 3]
    assert propose(text, 2) == (60, 61)


def test_the_draft_ends_where_the_ways_part():
    ways = [token for last in range(20) for token in (1, 2, 3, 4, 100 + last)]
    assert propose([*ways, 1, 2, 3]) == (4,)


def test_nothing_from_nothing():
    assert propose([]) == () and propose([1]) == () and propose([1, 2, 1, 2]) == ()


def test_a_sure_way_is_surer_than_a_fork():
    index, fork = SuffixIndex(), [1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3, 4, 8, 1, 2, 3]
    index.extend(fork)
    proposal = index.propose(fork, 1)
    assert proposal.tokens == (4,) and proposal.confidence == (pytest.approx(2 / 3 * 3 / 5),)


def test_memory_is_bounded_and_long_texts_still_draft():
    index, text = SuffixIndex(most_tokens=200), list[int]()
    rng = random.Random(1)
    for _ in range(1000):
        text.append(rng.randrange(1000))
        index.extend(text)
        assert index._text.tokens <= 200
    assert index.index_bytes < 200 * 400
    text += text[-50:-40]
    index.extend(text)
    assert index.propose(text, 4).tokens == tuple(text[-50:-46])
    whole = SuffixIndex(most_tokens=200)
    whole.extend(text)
    assert whole.count == len(text) and whole.propose(text, 4).tokens == tuple(text[-50:-46])


def test_the_drafter_keeps_sequences_apart():
    drafter = LookupDrafter("suffix", MOST, SuffixIndex)
    told = Sequence("told", [1, 2, 3, 4, 5, 1, 2, 3], 8, 99)
    other = Sequence("other", [9, 1, 2, 3], 4, 99)
    assert [p.tokens for p in drafter.propose([Ask(told, 2), Ask(other, 2)])] == [(4, 5), ()]
    drafter.forget("told")
    assert list(drafter._indices) == ["other"]
