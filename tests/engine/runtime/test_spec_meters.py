"""Counts of speculation: their identities, the measured plain step, and when the alarm goes off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_engine.events import Drafts
from strata_engine.runtime.spec_meters import ALARM_ROUNDS, DraftTally, SequenceMeter, SpecMeter

ROUNDS = st.lists(st.integers(0, 8).flatmap(lambda most: st.tuples(st.just(most), st.integers(0, most))), max_size=40)


@given(ROUNDS)
def test_kept_by_position_adds_up_to_what_was_accepted(rounds):
    tally = DraftTally()
    for drafted, accepted in rounds:
        tally.count(drafted, accepted)
    assert sum(tally.by_position) == tally.accepted == sum(kept for _, kept in rounds)
    assert tally.by_position == sorted(tally.by_position, reverse=True)
    assert all(count == sum(kept > place for _, kept in rounds) for place, count in enumerate(tally.by_position))
    assert tally.rounds == sum(given > 0 for given, _ in rounds)


@given(ROUNDS)
def test_accept_length_times_steps_gives_the_tokens_back(rounds):
    meter = SequenceMeter(lambda batch: 0.5)
    for drafted, accepted in rounds:
        meter.count(drafted, accepted, 1)
    drafts = meter.drafts()
    generated = 1 + sum(kept + 1 for _, kept in rounds)  # the prompt's step gives the first
    without_first, with_first = drafts.lengths(generated)
    assert drafts.steps == len(rounds)
    assert without_first * len(rounds) == pytest.approx(generated - 1)
    if rounds:
        assert with_first * len(rounds) == pytest.approx(generated)
        assert drafts.plain_s == pytest.approx(0.5 * (generated - 1))


def test_the_gain_is_the_measured_plain_time_over_the_time_it_took():
    assert Drafts(4, 4, 12, 8, (4, 4), 3.0).gain(2.0) == 1.5
    assert Drafts(4, 4, 12, 8, (4, 4)).gain(2.0) is None


def test_a_width_without_a_measured_plain_step_leaves_the_gain_open():
    measured = {1: 0.1}
    meter = SequenceMeter(measured.get)
    assert meter.drafts().plain_s is None
    meter.count(3, 2, 1)
    meter.count(3, 1, 4)
    assert meter.drafts().plain_s is None
    measured[4] = 0.4  # measured later, told then
    assert meter.drafts().plain_s == pytest.approx(3 * 0.1 + 2 * 0.4)


def test_the_plain_step_is_the_median_of_its_own_width():
    meter = SpecMeter({})
    assert meter.plain_s(1) is None
    for seconds in (1.0, 90.0, 1.2):  # the one in the middle was recorded first, or the machine was busy
        meter.plain_step(1, seconds)
    meter.plain_step(4, 2.0)
    assert (meter.plain_s(1), meter.plain_s(4), meter.plain_s(2)) == (1.2, 2.0, None)
    assert meter.data()["plain_step_ms"] == {"1": 1200.0, "4": 2000.0}


def test_a_step_of_several_sequences_counts_each():
    meter = SpecMeter({})
    meter.count("mtp", (3, 0, 3), (2, 0, 0))
    assert (meter.steps, meter.tokens) == (3, 5)
    assert meter.data()["by_drafter"] == {
        "mtp": {"rounds": 2, "drafted": 6, "accepted": 2, "by_position": [1, 1], "tokens_per_round": 2.0}
    }


def play(meter: SpecMeter, rounds: int, kept: int, drafter: str = "mtp"):
    return [notice for _ in range(rounds) if (notice := meter.count(drafter, (3,), (kept,))) is not None]


def test_the_alarm_goes_off_once_and_names_drafter_layout_and_numbers():
    meter = SpecMeter({"mtp": {"block": 4, "layout": "fill-in"}})
    assert play(meter, ALARM_ROUNDS - 1, 0) == []
    (notice,) = play(meter, 3 * ALARM_ROUNDS, 0)
    assert notice.code == "spec_alarm"
    for part in ("mtp", "block 4", "layout fill-in", "1.00 tokens a round", "200 rounds", "1.3"):
        assert part in notice.message


def test_the_alarm_looks_at_the_last_rounds_only():
    meter = SpecMeter({})
    assert play(meter, 1000, 3) == []
    late = play(meter, ALARM_ROUNDS, 0)
    assert len(late) == 1


def test_good_drafts_lookups_and_too_few_rounds_raise_no_alarm():
    meter = SpecMeter({}, unalarmed=("suffix",))
    assert play(meter, 10 * ALARM_ROUNDS, 1) == []
    assert play(meter, 10 * ALARM_ROUNDS, 0, "suffix") == []
    assert play(meter, ALARM_ROUNDS // 2, 0, "ngram") == []


def test_drafters_are_told_apart():
    meter = SpecMeter({})
    for _ in range(ALARM_ROUNDS // 2):
        assert meter.count("mtp", (3,), (3,)) is None
        assert meter.count("ngram", (3,), (0,)) is None
    assert [play(meter, ALARM_ROUNDS, 0, name)[0].message.split()[1].strip(":") for name in ("ngram", "mtp")] == [
        "ngram",
        "mtp",
    ]
