"""Sampling against plain definitions: sets kept by top-k, top-p and min-p, penalties, seeds, log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_engine.config import SamplingParams
from strata_engine.errors import LlmrunError, RequestRefused
from strata_engine.runtime.sampler import Chooser, uniform
from strata_engine.runtime.transforms import History, adjust, candidates, largest

EMPTY = History([1, 2], 2)


def row(size: int = 1000, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)


def plain(**changes) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **changes})


def kept_by_definition(logits: np.ndarray, p: SamplingParams) -> list[int]:
    """The documented order, done the slow way in f64 over the whole sorted row."""
    order = sorted(range(logits.size), key=lambda i: (-logits[i], i))
    scaled = logits.astype(np.float64)[order] / p.temperature
    weights = np.exp(scaled - scaled[0])
    if p.top_k > 0:
        weights = weights[: p.top_k]
    probabilities = weights / weights.sum()
    keep = next((n + 1 for n in range(weights.size) if probabilities[: n + 1].sum() >= p.top_p - 1e-12), weights.size)
    keep = weights.size if p.top_p >= 1.0 else keep
    keep = min(keep, int((probabilities >= p.min_p * probabilities[0]).sum()) or 1) if p.min_p > 0 else keep
    return order[:keep]


@given(
    st.integers(0, 10**6),
    st.sampled_from([64, 100, 1000, 5000]),
    st.sampled_from([0, 1, 5, 40, 3000]),
    st.sampled_from([0.1, 0.5, 0.9, 0.99, 1.0]),
    st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    st.sampled_from([0.3, 1.0, 4.0]),
)
@settings(max_examples=150, deadline=None)
def test_the_kept_tokens_are_those_of_the_definition(seed, size, top_k, top_p, min_p, temperature):
    p = plain(top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
    logits = row(size, seed)
    ids, probabilities = candidates(logits, p)
    if top_k == 0 and top_p == 1.0 and min_p == 0.0:
        assert list(ids) == list(range(size))
        return
    expected = kept_by_definition(logits, p)
    assert abs(len(ids) - len(expected)) <= 1 and list(ids) == expected[: len(ids)] + list(ids[len(expected) :])
    assert probabilities.sum() == pytest.approx(1.0)
    assert np.all(np.diff(probabilities) <= 0)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=700), st.integers(1, 300))
@settings(max_examples=200, deadline=None)
def test_largest_orders_by_value_then_id(values, count):
    logits = np.array(values, dtype=np.float32)
    expected = sorted(range(logits.size), key=lambda i: (-logits[i], i))[:count]
    assert list(largest(logits, count)) == expected


def test_temperature_zero_takes_the_lowest_id_of_equals():
    logits = np.array([0, 5, 1, 5, 5], dtype=np.float32)
    assert Chooser(SamplingParams(temperature=0), ()).choose(logits, EMPTY).id == 1


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 5e-324])
def test_a_tiny_temperature_is_the_best_token_without_overflow(temperature):
    logits = row()
    assert Chooser(plain(temperature=temperature), ()).choose(logits, EMPTY).id == int(logits.argmax())


def test_without_limits_every_token_keeps_its_own_probability():
    logits = row(300)
    ids, probabilities = candidates(logits, plain())
    exact = np.exp(logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum()))
    assert probabilities == pytest.approx(exact[ids], rel=1e-5)


def test_the_same_seed_and_step_give_the_same_token():
    logits, p = row(), plain(seed=42)
    assert Chooser(p, ()).choose(logits, EMPTY) == Chooser(p, ()).choose(logits, EMPTY)


def test_steps_of_one_seed_are_independent_draws():
    draws = [uniform(7, step) for step in range(2000)]
    assert len(set(draws)) == 2000
    assert abs(np.mean(draws) - 0.5) < 0.03
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.06


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**80])
def test_any_whole_number_is_a_seed(seed):
    assert 0 <= Chooser(plain(seed=seed), ()).choose(row(), EMPTY).id < 1000


def test_tokens_are_drawn_with_their_probabilities():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    chooser = Chooser(plain(seed=3), ())
    counts = np.zeros(4)
    for step in range(4000):
        counts[chooser.choose(logits, History([0] * step, 0)).id] += 1
    assert np.abs(counts / 4000 - [0.5, 0.3, 0.15, 0.05]).max() < 0.03


def test_the_repeat_penalty_sees_the_last_n_of_prompt_and_answer():
    logits = np.array([2.0, -2.0, 2.0, 2.0], dtype=np.float32)
    p = plain(repeat_penalty=2.0, penalty_last_n=2)
    assert adjust(logits, p, History([2, 0, 1], 2), ()).tolist() == [1.0, -4.0, 2.0, 2.0]
    everything = plain(repeat_penalty=2.0, penalty_last_n=-1)
    assert adjust(logits, everything, History([2, 0, 1], 2), ()).tolist() == [1.0, -4.0, 1.0, 2.0]


def test_presence_and_frequency_penalties_count_generated_tokens_only():
    logits = np.zeros(4, dtype=np.float32)
    p = plain(presence_penalty=0.5, frequency_penalty=0.25)
    adjusted = adjust(logits, p, History([3, 3, 1, 1, 2], 2), ())
    assert adjusted.tolist() == [0.0, -1.0, -0.75, 0.0]


def test_bias_is_clamped_and_logits_stay_as_they_were():
    logits = np.zeros(3, dtype=np.float32)
    adjusted = adjust(logits, plain(logit_bias=((1, 1e9), (2, -1e9))), EMPTY, ())
    assert adjusted.tolist() == [0.0, 100.0, -100.0]
    assert not logits.any()


def test_a_masked_best_token_is_not_taken_even_without_other_changes():
    logits = np.array([1.0, 9.0, 2.0], dtype=np.float32)
    greedy = SamplingParams(temperature=0, ignore_eos=True)
    assert Chooser(greedy, {1}).choose(logits, EMPTY).id == 2
    assert Chooser(SamplingParams(temperature=0), {1}).choose(logits, EMPTY).id == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error(bad, temperature):
    logits = row()
    logits[500] = bad
    with pytest.raises(LlmrunError, match=str(bad)):
        Chooser(plain(temperature=temperature), ()).choose(logits, EMPTY)


def test_masking_everything_is_refused():
    logits = np.zeros(2, dtype=np.float32)
    with pytest.raises(RequestRefused):
        Chooser(SamplingParams(temperature=0, ignore_eos=True), {0, 1}).choose(logits, EMPTY)


def test_log_probabilities_are_of_the_unchanged_logits_and_top_is_sorted():
    logits = np.log(np.array([0.1, 0.6, 0.3], dtype=np.float32))
    p = SamplingParams(temperature=0, logprobs=2, logit_bias=((0, 50.0),))
    token = Chooser(p, ()).choose(logits, EMPTY)
    assert (token.id, token.logprob) == (0, pytest.approx(np.log(0.1), abs=1e-6))
    assert [i for i, _ in token.top] == [1, 2]
    assert [v for _, v in token.top] == pytest.approx([np.log(0.6), np.log(0.3)], abs=1e-6)


def test_no_log_probabilities_unless_asked_for():
    assert Chooser(plain(), ()).choose(row(), EMPTY).logprob is None
    zero = Chooser(plain(logprobs=0), ()).choose(row(), EMPTY)
    assert zero.logprob is not None and zero.top == ()
