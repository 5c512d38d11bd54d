"""Recorded steps by shape: recorded the first time a shape comes, replayed from then on, the oldest forgotten.

Shared by the executor and by drafters that run layers of their own. A replay costs the host no Python per layer.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from strata_kernels.ops import Ops, Step

KEPT_STEPS = 64  # all decode widths of a usual server and the chunk sizes in use

Shape = TypeVar("Shape", bound=Hashable)


def edges(most: int) -> list[int]:
    """Numbers up to `most` around each power of two: what may choose another kernel does so there."""
    found = {1, most}
    power = 1
    while power <= most:
        found |= {power, power + 1}
        power *= 2
    return sorted(number for number in found if number <= most)


class Steps(Generic[Shape]):
    """Steps of one Ops. Not thread-safe: the ops have one workspace."""

    def __init__(self, ops: Ops, record: Callable[[Shape], None], kept: int = KEPT_STEPS) -> None:
        """`record(shape)` calls the ops of a step of that shape, on arrays whose addresses never move.

        It runs inside `ops.begin()`, `ops.end()` and a scope of the workspace.
        """
        self.recorded, self.recorded_s = 0, 0.0  # so far: steps, and the seconds that recording them took
        self._ops, self._record, self._kept = ops, record, kept
        self._steps: OrderedDict[Shape, Step] = OrderedDict()

    def run(self, shape: Shape) -> None:
        """Run the step of this shape on what the buffers hold now. Raises what `record` and the step raise."""
        step = self._steps.get(shape)
        if step is None:
            step = self._make(shape)
        else:
            self._steps.move_to_end(shape)
        step.run()

    def knows(self, shape: Shape) -> bool:
        """Is the step of this shape recorded?"""
        return shape in self._steps

    def prepare(self, shape: Shape) -> None:
        """Record the step of this shape, if it is not known, and do not run it. Raises what `record` raises."""
        if shape not in self._steps:
            self._make(shape)

    def plan(self, shape: Shape) -> None:
        """Record a step of this shape into ops that only plan (gpu/core.py), and forget it."""
        with self._ops.scope():
            self._record(shape)

    def _make(self, shape: Shape) -> Step:
        begun = time.perf_counter()
        self.recorded += 1
        self._ops.begin()
        try:
            with self._ops.scope():
                self._record(shape)
        finally:
            step = self._ops.end()
        self._steps[shape] = step
        if len(self._steps) > self._kept:
            self._steps.popitem(last=False)
        self.recorded_s += time.perf_counter() - begun
        return step
