"""Recorded steps: one recording a shape, the least recently used forgotten, a failed recording kept nowhere."""

from __future__ import annotations

import numpy as np
import pytest

from strata_engine.core.steps import Steps
from strata_kernels.reference.ops import ReferenceOps


class Doubling:
    """Steps that write twice the first `count` numbers of a buffer."""

    def __init__(self, kept: int = 64) -> None:
        self.ops, self.recorded = ReferenceOps(), []
        self.source, self.out = self.ops.zeros(8), self.ops.zeros(8)
        self.steps = Steps(self.ops, self.record, kept)

    def record(self, count: int) -> None:
        self.recorded.append(count)
        if count > 8:
            raise ValueError("too many")
        self.ops.add(self.source[:count], self.source[:count], self.out[:count])


def test_a_known_shape_is_replayed_on_what_the_buffers_hold_then():
    of = Doubling()
    for value in (1, 2, 3):
        of.source[:] = value
        of.steps.run(4)
        assert np.array_equal(of.out, [2.0 * value] * 4 + [0.0] * 4)
    assert of.recorded == [4] and of.steps.recorded == 1


def test_the_shape_used_longest_ago_is_forgotten():
    of = Doubling(kept=2)
    for shape in (1, 2, 1, 3, 1, 2):
        of.steps.run(shape)
    assert of.recorded == [1, 2, 3, 2]


def test_a_step_that_was_prepared_is_not_recorded_again():
    of = Doubling(kept=2)
    of.source[:] = 1
    for shape in (3, 3, 5):
        of.steps.prepare(shape)
    assert of.recorded == [3, 5] and not np.any(of.out)  # recorded, not run
    of.steps.run(3)
    assert of.recorded == [3, 5] and list(of.out[:4]) == [2.0, 2.0, 2.0, 0.0]
    assert of.steps.recorded == 2 and of.steps.recorded_s > 0


def test_a_recording_that_fails_is_not_kept_and_the_next_one_works():
    of = Doubling()
    with pytest.raises(ValueError, match="too many"):
        of.steps.run(9)
    of.source[:] = 1
    of.steps.run(2)
    assert list(of.out[:3]) == [2.0, 2.0, 0.0]
