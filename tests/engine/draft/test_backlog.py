"""What waits for a drafter's own layers: copies in order, pieces of any size, rows again, and gaps."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest

from strata_engine.core.sequence import Hold, Sequence
from strata_engine.draft.backlog import Backlog

PAGE = 4


def rows(first: int, end: int, salt: float = 0.0) -> np.ndarray:
    """Row p holds p and p + salt."""
    return np.stack([[p, p + salt] for p in range(first, end)]).astype(np.float32)


def sequence(tokens: int, drafted: int = 0) -> Sequence:
    pages = array("i", range(100, 100 + -(-tokens // PAGE)))
    return Sequence("one", list(range(tokens + 1)), 1, 99, hold=Hold(pages, tokens, drafted={"": drafted}))


def taken(backlog: Backlog, one: Sequence, count: int | None = None) -> tuple[int, list[float]]:
    """(first position, what the rows hold) of a feed."""
    feed = backlog.take(one, count)
    found = np.concatenate([*feed.rows, np.empty((0, 2), np.float32)])
    assert feed.count == len(found)
    return feed.start, found[:, 0].tolist()


def test_rows_come_out_in_order_and_count_as_read():
    backlog, one = Backlog(2, PAGE), sequence(7)
    backlog.add(one, 0, rows(0, 5))
    assert not backlog.complete(one)
    backlog.add(one, 5, rows(5, 7))
    assert backlog.complete(one) and backlog.unread(one) == 7
    assert taken(backlog, one, 3) == (0, [0, 1, 2]) and one.hold.drafted[""] == 3
    assert taken(backlog, one) == (3, [3, 4, 5, 6]) and one.hold.drafted[""] == 7
    assert backlog.unread(one) == 0 and backlog.complete(one)


def test_the_rows_are_copies():
    backlog, one, given = Backlog(2, PAGE), sequence(2), rows(0, 2)
    backlog.add(one, 0, given)
    given[:] = -1
    assert taken(backlog, one) == (0, [0, 1])


def test_with_nothing_new_the_last_row_comes_again():
    backlog, one = Backlog(2, PAGE), sequence(3)
    backlog.add(one, 0, rows(0, 3))
    assert taken(backlog, one) == (0, [0, 1, 2])
    for _ in range(2):
        assert taken(backlog, one) == (2, [2])


@pytest.mark.parametrize("read", [0, 3, 6])
@pytest.mark.parametrize("again", [0, 2, 3, 5])
def test_rows_that_run_again_replace_the_old_ones(read, again):
    backlog, one = Backlog(2, PAGE), sequence(7)
    backlog.add(one, 0, rows(0, 6, salt=0.5))
    if read:
        backlog.take(one, read)
    backlog.add(one, again, rows(again, 7, salt=0.25))
    feed = backlog.take(one)
    found = np.concatenate(feed.rows)
    assert feed.start == min(read, again)
    assert found[:, 0].tolist() == list(range(feed.start, 7))
    assert (found[:, 1] - found[:, 0]).tolist() == [0.5] * max(0, again - read) + [0.25] * (7 - again)
    assert backlog.complete(one)


@pytest.mark.parametrize(("start", "base"), [(8, 8), (5, 8), (9, 12)])
def test_after_a_gap_the_context_begins_at_the_next_page(start, base):
    backlog, one = Backlog(2, PAGE), sequence(16)
    backlog.add(one, start, rows(start, 10))
    assert not backlog.complete(one)
    backlog.add(one, 10, rows(10, 16))
    assert backlog.complete(one)
    feed = backlog.take(one)
    assert (feed.base, feed.start, feed.count) == (base, base, 16 - base)
    assert feed.pages(PAGE).tolist() == [100 + page for page in range(base // PAGE, 4)]
    assert one.hold.drafted[""] == 0  # its rows stand at other positions: of no use to whoever shares the pages


def test_a_gap_in_the_middle_begins_anew_too():
    backlog, one = Backlog(2, PAGE), sequence(12)
    backlog.add(one, 0, rows(0, 5))
    backlog.take(one, 4)
    backlog.add(one, 7, rows(7, 12))
    assert taken(backlog, one) == (8, [8, 9, 10, 11]) and one.hold.drafted[""] == 0


def test_nothing_is_complete_before_the_page_behind_a_gap():
    backlog, one = Backlog(2, PAGE), sequence(8)
    backlog.add(one, 5, rows(5, 8))
    assert not backlog.complete(one) and backlog.unread(one) == 0
    one.hold.tokens = 9
    backlog.add(one, 8, rows(8, 9))
    assert backlog.complete(one) and taken(backlog, one) == (8, [8])


@pytest.mark.parametrize("drafted", [7, 8])
def test_a_cached_prefix_with_rows_is_gone_on_from(drafted):
    """The row before the prefix's end may have looked at another token; all others must be known."""
    backlog, one = Backlog(2, PAGE), sequence(10, drafted)
    backlog.add(one, 8, rows(8, 10))
    feed = backlog.take(one)
    assert (feed.base, feed.start, feed.count, one.hold.drafted[""]) == (0, 8, 2, 10)


def test_a_cached_prefix_with_fewer_rows_is_a_gap():
    backlog, one = Backlog(2, PAGE), sequence(10, drafted=6)
    backlog.add(one, 8, rows(8, 10))
    assert backlog.take(one).base == 8


def test_forgetting_begins_at_the_beginning():
    backlog, one = Backlog(2, PAGE), sequence(3)
    backlog.add(one, 0, rows(0, 3))
    backlog.forget("one")
    backlog.forget("another")
    assert not backlog.complete(one) and backlog.unread(one) == 0
    backlog.add(one, 0, rows(0, 3, salt=1.0))
    assert backlog.take(one).count == 3


def test_rows_of_another_width_are_refused():
    with pytest.raises(ValueError, match="expected"):
        Backlog(3, PAGE).add(sequence(2), 0, rows(0, 2))


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_additions_and_readings_hands_every_row_out_once(seed):
    draw = random.Random(seed)
    backlog, one, found, at = Backlog(2, PAGE), sequence(60), [], 0
    while len(found) < 60:
        if at < 60 and draw.random() < 0.6:
            size = min(draw.randint(1, 7), 60 - at)
            backlog.add(one, at, rows(at, at + size))
            at += size
        elif backlog.unread(one):
            start, part = taken(backlog, one, draw.choice([1, 2, 5, None]))
            assert start == len(found)
            found += part
    assert found == list(range(60)) and backlog.complete(one)
