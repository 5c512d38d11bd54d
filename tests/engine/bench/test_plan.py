"""Lists, ranges and combinations of what to measure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_engine.bench.plan import SpeedTest, combine, numbers, pairs
from strata_engine.errors import UsageError


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("512", [512]),
        ("128,512", [128, 512]),
        ("1-4", [1, 2, 3, 4]),
        ("1-8+2", [1, 3, 5, 7]),
        ("1-64*2", [1, 2, 4, 8, 16, 32, 64]),
        ("0,8-9, 8", [0, 8, 9]),
    ],
)
def test_lists_and_ranges_are_read_in_order_without_repeats(text: str, wanted: list[int]):
    assert numbers(text, "-p") == wanted


@pytest.mark.parametrize(
    "text", ["", "x", "1,", "5-1", "1-8+0", "1-8*1", "0-8*2", "-1", "1.5", "1-2-3", "1-999999", "9" * 12]
)
def test_wrong_lists_are_refused_with_the_flag_named(text: str):
    with pytest.raises(UsageError, match="^-p "):
        numbers(text, "-p")


@given(st.text(alphabet="0123456789,-+* ", max_size=12))
def test_any_text_gives_numbers_or_a_usage_error(text: str):
    try:
        assert all(n >= 0 for n in numbers(text, "-p"))
    except UsageError:
        pass


def test_combinations_follow_depth_then_shape_and_skip_tests_without_tokens():
    found = combine([0, 8], [4], [(8, 4)], [0, 16])
    assert [t.key for t in found] == ["pp8@d0", "tg4@d0", "pp8+tg4@d0", "pp8@d16", "tg4@d16", "pp8+tg4@d16"]


def test_labels_name_the_depth_only_when_there_is_one():
    assert (SpeedTest(0, 128).label, SpeedTest(0, 128, 4096).label) == ("tg128", "tg128 @ d4096")


def test_nothing_to_measure_is_an_error():
    with pytest.raises(UsageError, match="nothing to measure"):
        combine([0], [0], [(0, 0)], [0])


def test_pairs_need_two_numbers():
    assert pairs(["512,128"]) == [(512, 128)]
    with pytest.raises(UsageError):
        pairs(["512"])
