"""Prompt lookup against a brute-force search, and what a sequence's index may and may not do."""

from __future__ import annotations

import random

import pytest

from strata_engine.core.sequence import Sequence
from strata_engine.draft.base import Ask
from strata_engine.draft.lookup import LEAST_MATCH, LookupDrafter
from strata_engine.draft.ngram import MOST, NgramIndex


def sequence(tokens: list[int], name: str = "a") -> Sequence:
    return Sequence(name, tokens, len(tokens), len(tokens) + 100)


def longest_match(tokens: list[int]) -> int:
    """Length of the longest end of the text that also ends earlier, by looking everywhere."""
    best = 0
    for place in range(1, len(tokens)):
        length = 0
        while length < place and tokens[place - length - 1] == tokens[len(tokens) - length - 1]:
            length += 1
        best = max(best, length)
    return best


def draft(tokens: list[int], most: int = 8) -> tuple[int, ...]:
    index = NgramIndex()
    index.extend(tokens)
    return index.propose(tokens, most).tokens


def test_what_followed_the_longest_match_is_drafted():
    text = [1, 2, 3, 50, 9, 1, 2, 3, 60, 61, 7, 9, 1, 2, 3]
    assert draft(text, 3) == (60, 61, 7)  # 9 1 2 3 beats 1 2 3
    assert draft([*text[:-4], 8, 1, 2, 3], 2) == (60, 61)  # among equals the latest


def test_short_matches_are_chance():
    assert draft([1, 2, 9, 9, 1, 2]) == ()
    assert draft([]) == () and draft([5]) == () and draft([5, 5]) == ()


def test_a_short_match_gives_a_short_draft():
    text = [1, 2, 3, *range(100, 140), 1, 2, 3]
    assert len(draft(text, 30)) == 6


def test_text_that_repeats_goes_round():
    text = [4, 5, 6] * 4
    assert draft(text, 8) == (4, 5, 6, 4, 5, 6, 4, 5)
    assert draft([7] * 9, 5) == (7,) * 5


@pytest.mark.parametrize("letters", [2, 4, 12])
def test_one_token_at_a_time_finds_what_brute_force_finds(letters: int):
    rng = random.Random(letters)
    text, index, exact = list[int](), NgramIndex(), 0
    for _ in range(150):
        copy = rng.randrange(len(text)) if len(text) > 20 and rng.random() < 0.1 else None
        text += text[copy : copy + 9] if copy is not None else [rng.randrange(letters)]
        index.extend(text)
        proposal = index.propose(text, 8)
        longest = min(64, longest_match(text))
        if not proposal.tokens:
            assert longest < LEAST_MATCH
            continue
        found = round(2 * proposal.confidence[0] / (1 - proposal.confidence[0]))
        places = sum(text[i : i + 3] == text[-3:] for i in range(len(text) - 3))
        assert LEAST_MATCH <= found <= longest
        if places <= 16:  # all of them are looked at
            assert found == longest
            exact += 1
    assert exact > 10


def test_chunks_give_what_single_tokens_give():
    rng = random.Random(3)
    text = [rng.randrange(6) for _ in range(400)]
    one, many = NgramIndex(), NgramIndex()
    for end in range(1, len(text) + 1):
        one.extend(text[:end])
    end = 0
    while end < len(text):
        end = min(len(text), end + rng.randrange(1, 50))
        many.extend(text[:end])
    assert one.propose(text, 8).tokens and many.propose(text, 8).tokens
    assert one._latest == many._latest and one._earlier == many._earlier


def test_confidence_grows_with_the_match():
    text = [*range(30), 99, 98, 97, *range(20, 30)]
    index = NgramIndex()
    index.extend(text)
    sure = index.propose(text, 4).confidence
    assert sure == tuple(sorted(sure)) and sure[0] == pytest.approx(10 / 12)


def test_sequences_share_nothing_and_are_forgotten():
    drafter = LookupDrafter("ngram", MOST, NgramIndex)
    told = sequence([1, 2, 3, 4, 5, 1, 2, 3], "told")
    other = sequence([9, 9, 1, 2, 3], "other")
    first, second = drafter.propose([Ask(told, 2), Ask(other, 2)])
    assert first.tokens == (4, 5) and second.tokens == ()
    assert drafter.report()["index_bytes"] > 0
    drafter.forget("told")
    drafter.forget("other")
    drafter.forget("never seen")
    assert drafter.report()["index_bytes"] == 0
    assert drafter.propose([Ask(sequence([7, 1, 2, 3], "told"), 2)])[0].tokens == ()


def test_a_sequence_grows_and_its_index_follows():
    drafter, growing = LookupDrafter("ngram", MOST, NgramIndex), sequence([1, 2, 3, 4])
    assert drafter.propose([Ask(growing, 4)])[0].tokens == ()
    growing.tokens += [8, 1, 2, 3]
    assert drafter.propose([Ask(growing, 2)])[0].tokens == (4, 8)
    assert drafter.propose([Ask(growing, 1)])[0].tokens == (4,)
