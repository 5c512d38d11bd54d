"""Operations on addresses without memory, to find which variants a model would launch: nothing is computed.

`PlanOps` is GpuOps whose allocator hands out addresses and whose matrices have the shape of packed ones without their
bytes. What `planning` collects is what the same calls launch on a device, no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from strata_kernels.gpu.arrays import Block, DeviceArray, round_up
from strata_kernels.gpu.cells import LAYOUT, packed_bytes
from strata_kernels.gpu.launch import Launch
from strata_kernels.gpu.ops import GpuOps
from strata_kernels.ops import Weight

FIRST_ADDRESS = 1 << 40


class PlanBlock:
    """An address. Reads give zeros, writes do nothing."""

    def __init__(self, allocator: PlanAllocator, address: int, nbytes: int) -> None:
        self._allocator, self.address, self.nbytes = allocator, address, nbytes

    def read(self, offset: int, out: NDArray[np.uint8]) -> None:
        """As Block."""
        out[:] = 0

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        """As Block."""

    def fill(self, offset: int, nbytes: int, value: int) -> None:
        """As Block."""

    def copy(self, offset: int, source: Block, source_offset: int, nbytes: int) -> None:
        """As Block."""

    def like(self, nbytes: int) -> PlanBlock:
        """As Block."""
        return self._allocator.allocate(nbytes)


class PlanAllocator:
    """Hands out addresses that no other block has, aligned as a driver's are."""

    host = False

    def __init__(self) -> None:
        self._next = FIRST_ADDRESS

    def allocate(self, nbytes: int) -> PlanBlock:
        """As Allocator; there is always room."""
        block = PlanBlock(self, self._next, nbytes)
        self._next += round_up(max(nbytes, 1))
        return block


class PlannedStep:
    """Does nothing."""

    def run(self) -> None:
        """As Step."""


class PlanningLauncher:
    """Launches nothing: what an op does outside `planning` (laying out a matrix, say) happens on no device."""

    def prepare(self, launches: Sequence[Launch]) -> PlannedStep:
        """As Launcher."""
        return PlannedStep()


class PlanOps(GpuOps):
    """Operations that only note what they would launch, inside `planning`."""

    def __init__(self) -> None:
        super().__init__(PlanningLauncher(), PlanAllocator())

    def blank(self, type_name: str, rows: int, cols: int, row_bytes: int, packed: bool) -> Weight:
        """A matrix without its bytes; `row_bytes`: of a row in the file. `packed`: as `pack` lays it out.

        Raises KeyError for a type that no kernel multiplies, ValueError for columns that are not whole blocks.
        """
        stored = Weight(type_name, rows, cols, self._bytes(rows, row_bytes))
        return self.pack(stored) if packed else stored

    def pack(self, weight: Weight) -> Weight:
        """As Ops, without a byte."""
        if weight.layout == LAYOUT:
            return weight
        data = self._bytes(packed_bytes(weight.type, weight.rows, weight.cols))
        return replace(weight, data=data, layout=LAYOUT)

    def _bytes(self, *shape: int) -> DeviceArray:
        return DeviceArray(self.allocator.allocate(prod(shape)), 0, tuple(shape), "u8")
