"""The divergence between two forward passes, against cases computed by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from strata_engine.bench.quality import all_logits, divergence
from strata_engine.errors import OutOfMemory
from strata_engine.formats.open import open_weights
from strata_kernels.reference.ops import ReferenceOps
from tests.support.forward import Runner
from tests.support.tiny_llama import tiny_llama


def _fixed(*rows: list[float]):
    return lambda ids: np.array(rows, np.float32)[: len(ids)]


def test_a_pass_does_not_diverge_from_itself():
    same = _fixed([1.0, 2.0, 3.0], [0.0, -1.0, 5.0])
    found = divergence(same, same, [[7, 8], [7]])
    assert (found.mean_nats, found.worst_nats, found.same_top_share, found.positions) == (0.0, 0.0, 1.0, 3)


def test_the_divergence_is_that_of_the_first_from_the_second_and_ignores_a_shift():
    exact, other = _fixed([math.log(0.75) + 9, math.log(0.25) + 9]), _fixed([0.0, 0.0])
    found = divergence(exact, other, [[1]])
    assert found.mean_nats == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel=1e-6)
    assert found.same_top_share == 1.0


def test_mean_worst_and_likeliest_are_taken_over_all_positions():
    exact, other = _fixed([2.0, 0.0], [0.0, 0.0]), _fixed([0.0, 2.0], [0.0, 0.0])
    found = divergence(exact, other, [[1, 2]])
    assert found.worst_nats == pytest.approx(2 * found.mean_nats)
    assert found.same_top_share == 0.5


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(open_weights(tiny_llama(tmp_path / "m.gguf")), ReferenceOps(), context_tokens=32, sequences=1)


def test_every_position_of_a_text_gets_its_logits(runner):
    ids = [3, 1, 4, 1, 5]
    np.testing.assert_array_equal(all_logits(runner.executor, runner.memory, ids), runner.all_logits(ids).numpy())


def test_a_text_that_does_not_fit_is_refused(runner):
    with pytest.raises(OutOfMemory, match="no room for a text of 99 tokens"):
        all_logits(runner.executor, runner.memory, [1] * 99)
