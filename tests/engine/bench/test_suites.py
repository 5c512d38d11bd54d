"""The questions of the bench: known results, the same ones every time, and texts of the wanted length."""

from __future__ import annotations

import re

import pytest

from strata_engine.bench.plan import SpeedTest
from strata_engine.bench.suites import SMALL_MODEL, continuation, is_right, questions, suite_named
from strata_engine.bench.sums import held_out
from strata_engine.chat import TokenRequest
from strata_engine.errors import UsageError
from strata_engine.text.base import TextRules
from tests.support.fake_service import ByteTokenizer


def test_sums_are_held_out_ones_with_their_right_result():
    for case in questions("sums", 200):
        a, b = (int(n) for n in re.findall(r"\d+", case.request.messages[0].text)[:2])
        assert held_out(a, b)
        assert int(case.result) in (a + b, abs(a - b))
    assert questions("sums", 30) == questions("sums", 200)[:30]


def test_every_result_of_gsm8k_is_a_number():
    cases = questions("gsm8k", 32)
    assert len({case.name for case in cases}) == 32
    assert all(is_right(case.result, f"#### {case.result}") for case in cases)
    with pytest.raises(UsageError, match="gsm8k holds 32"):
        questions("gsm8k", 33)


@pytest.mark.parametrize(
    ("result", "answer", "right"),
    [("1000", "so it is 1,000.00", True), ("18", "9 * 2 = $18 every day.", True), ("18", "18 or 19", False),
     ("18", "no idea", False), ("-4", "#### -4", True), ("0.5", "half, 0.5", True)],
)  # fmt: skip
def test_the_last_number_counts(result, answer, right):
    assert is_right(result, answer) is right


def test_a_small_model_gets_sums():
    assert suite_named("gsm8k-like", SMALL_MODEL - 1) == "sums"
    assert suite_named("gsm8k-like", SMALL_MODEL) == suite_named("gsm8k", 1) == "gsm8k"
    with pytest.raises(UsageError, match="no such suite"):
        suite_named("mmlu", 1)


@pytest.mark.parametrize(
    ("test", "tokens"), [(SpeedTest(0, 16), 32), (SpeedTest(100, 16, 300), 400), (SpeedTest(0, 8, 40_000), 40_000)]
)
def test_a_continuation_has_the_tests_prompt_and_length(test, tokens):
    case = continuation(test, TextRules(ByteTokenizer(), None))
    assert isinstance(case.request, TokenRequest)
    assert (len(case.request.ids), case.most_tokens, case.ignore_eos) == (tokens, test.generate_tokens, True)
    with pytest.raises(UsageError, match="no tokenizer"):
        continuation(test, TextRules(None, None))
