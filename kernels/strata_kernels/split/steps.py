"""A recorded step over two sides: the sides' own steps and the copies between them, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strata_kernels.ops import Step
from strata_kernels.split.places import NEAR, Root


@dataclass(frozen=True)
class Copy:
    """Brings a piece of memory up to date on `side`. Waits for what the device still does."""

    root: Root
    side: str

    def run(self) -> None:
        """All of it: pieces are as large as what was asked for."""
        near, far = self.root.near, self.root.far
        if self.side == NEAR:
            near.write(far)
        elif near.nbytes:
            near.block.read(near.offset, far.reshape(-1).view(np.uint8))


class SplitStep:
    """Parts that run one after the other."""

    def __init__(self, parts: Sequence[Step]) -> None:
        self.parts = tuple(parts)

    @property
    def copies(self) -> int:
        """How many of them are copies between the sides."""
        return sum(isinstance(part, Copy) for part in self.parts)

    def run(self) -> None:
        """Raises what a part raises."""
        for part in self.parts:
            part.run()
