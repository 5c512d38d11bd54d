"""The measuring loop on a recording executor: which rows run, what is timed, what is guarded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from strata_engine.bench.plan import SpeedTest
from strata_engine.bench.speed import Measurer
from strata_engine.core.batch import BatchLimits
from strata_engine.errors import OutOfMemory
from strata_engine.memory.kv import KvMemory
from strata_engine.memory.memory import Memory


class Recorder:
    """Keeps (start, rows, logits) of every span; each run takes a second on the fake clock."""

    def __init__(self, time: SimpleNamespace) -> None:
        self.limits = BatchLimits(rows=8, sequences=1, context_tokens=64, logit_rows=1)
        self.spans: list[tuple[int, int, int]] = []
        self._time = time

    def run(self, spans):
        for span in spans:
            assert len(span.pages) * 4 >= span.start + len(span.ids)
            assert all(0 <= i < 300 for i in span.ids)
            self.spans.append((span.start, len(span.ids), span.logits))
        self._time.now += 1


@pytest.fixture
def bench():
    time = SimpleNamespace(now=0.0)
    memory = Memory([KvMemory(1, 4)], 16, 4, "f16")
    recorder = Recorder(time)
    return Measurer(recorder, memory, 300, clock=lambda: time.now), recorder, memory  # type: ignore[arg-type]


def test_a_prompt_runs_in_chunks_and_asks_for_the_last_logits_only(bench):
    measurer, recorder, _ = bench
    assert list(measurer.measure(SpeedTest(20, 0), 1)) == [pytest.approx(20 / 3)]
    assert recorder.spans == [(0, 8, 0), (8, 8, 0), (16, 4, 1)] * 2


def test_generation_runs_one_row_at_a_time_behind_the_depth(bench):
    measurer, recorder, _ = bench
    assert list(measurer.measure(SpeedTest(0, 3, 8), 2)) == [1.0, 1.0]
    assert recorder.spans == [(0, 8, 1)] + [(8, 1, 1), (9, 1, 1), (10, 1, 1)] * 3


def test_a_mixed_test_counts_both_kinds_of_token(bench):
    measurer, recorder, _ = bench
    assert list(measurer.measure(SpeedTest(8, 2), 1)) == [pytest.approx(10 / 3)]
    assert recorder.spans[:3] == [(0, 8, 1), (8, 1, 1), (9, 1, 1)]


def test_pages_are_given_back(bench):
    measurer, _, memory = bench
    list(measurer.measure(SpeedTest(20, 0), 1))
    assert memory.used_bytes == 0


def test_a_test_longer_than_the_context_is_refused_with_the_numbers(bench):
    measurer, _, memory = bench
    with pytest.raises(OutOfMemory, match="65 tokens.*64"):
        list(measurer.measure(SpeedTest(1, 0, 64), 1))
    assert memory.used_bytes == 0


def test_a_clock_that_stands_still_divides_by_no_zero(bench):
    measurer, _, _ = bench
    measurer.clock = lambda: 5.0
    assert next(measurer.measure(SpeedTest(1, 0), 1)) > 0
