"""The largest logits of a row as a device finds them: what the host's `largest` says, and the same token drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from strata_engine.config import SamplingParams
from strata_engine.runtime.sampler import Chooser, Top
from strata_engine.runtime.transforms import History, largest
from tests.support.op_cases import random, run
from tests.support.op_makers import triton_maker


def tops(logits, count=8):
    ops = triton_maker().make(1)
    ids, values = torch.zeros(len(logits), count, dtype=torch.int32), torch.zeros(len(logits), count)
    run(ops, lambda: ops.largest(logits, ids, values))
    return ids, values


@pytest.mark.parametrize("vocab", [9, 1024, 2500])
def test_they_are_those_that_the_host_finds(vocab):
    logits = (random(2, vocab, scale=4.0) * 2).round() / 2  # many are equal
    ids, values = tops(logits)
    for row in range(2):
        wanted = largest(logits[row].numpy(), 8)
        assert ids[row].tolist() == wanted.tolist()
        assert torch.equal(values[row], logits[row][torch.from_numpy(wanted)])


def test_a_short_row_is_filled_up_with_nothing():
    ids, values = tops(torch.tensor([[1.0, 3.0, 2.0]]))
    assert ids[0, :3].tolist() == [1, 2, 0]
    assert values[0, 3:].eq(-torch.inf).all()


def test_a_nan_comes_first_and_is_not_finite():
    logits = random(1, 40)
    logits[0, 7] = torch.nan
    ids, values = tops(logits)
    assert ids[0, 0] == 7 and not values[0, 0].isfinite()


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"top_k": 5}, {"top_k": 8, "top_p": 0.7, "min_p": 0.02}])
def test_the_token_drawn_is_the_same_as_from_the_whole_row(params):
    chooser = Chooser(SamplingParams(seed=5, **params), ())
    assert chooser.tops
    logits = random(1, 300, scale=2.0)
    ids, values = tops(logits)
    for step in range(12):
        history = History([0] * (3 + step), 3)
        top = Top(ids[0].numpy().astype(np.int64), values[0].numpy())
        assert chooser.choose(top, history).id == chooser.choose(logits[0].numpy(), history).id


@pytest.mark.parametrize(
    "params", [{"top_k": 0}, {"top_k": 65}, {"logprobs": 1}, {"min_tokens": 3}, {"ignore_eos": True}]
)
def test_whoever_may_need_more_gets_whole_rows(params):
    assert not Chooser(SamplingParams(temperature=0.8, **params), (2,)).tops
