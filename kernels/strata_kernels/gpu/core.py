"""What all groups of GPU operations stand on: arrays in and out, workspace, launching now or recording a step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata_kernels.arrays import is_array, type_name
from strata_kernels.gpu.arrays import DTYPES, Allocator, Block, DeviceArray, round_up, wrap
from strata_kernels.gpu.launch import Constant, Launch, Launcher, Value, Variant, make_launch
from strata_kernels.gpu.mirrors import Mirrors
from strata_kernels.ops import Step

# Which variant an op takes may depend on the rows R, on their sequences and on rows with logits at powers of two only
# (up to 1, 2, 4, ...): then a few shapes tell all variants of a model.
FEW_ROWS = 16  # decode and verify rows: kernels whose sums do not depend on how many there are
BLOCK_BYTES = 32 << 20  # of workspace at once


Build = Callable[[Collection[Variant]], str]  # what was done, in words; raises RuntimeError


class Core:
    """Launches on `launcher`, arrays from `allocator`. Not thread-safe: there is one workspace."""

    name = "triton"

    def __init__(self, launcher: Launcher, allocator: Allocator, build: Build | None = None) -> None:
        """`build`: sees that variants are there before anything needs them; None: the launcher needs nothing built."""
        self.launcher, self.allocator = launcher, allocator
        self._build = build
        self._blocks: list[Block] = []
        self._block = self._used = 0
        self._recorded: list[Launch] | None = None
        self._planned: dict[Variant, None] | None = None
        self._constants: dict[int, tuple[Any, DeviceArray]] = {}
        self._mirrors = Mirrors(allocator.host)

    @property
    def recording(self) -> bool:
        """Is a step being recorded?"""
        return self._recorded is not None

    @property
    def separate(self) -> bool:
        """Is the device's memory not the host's, so that what the host reads must be copied?"""
        return not self.allocator.host

    def take(self, *shape: int, dtype: str = "f32") -> DeviceArray:
        """As Ops."""
        if any(size < 0 for size in shape):
            raise ValueError(f"take: negative size in {shape}")
        need = round_up(max(1, int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype].itemsize))
        while self._block < len(self._blocks) and self._used + need > self._blocks[self._block].nbytes:
            self._block, self._used = self._block + 1, 0
        if self._block == len(self._blocks):
            self._blocks.append(self.allocator.allocate(max(need, BLOCK_BYTES)))
        start = self._used
        self._used += need
        return DeviceArray(self._blocks[self._block], start, tuple(shape), dtype)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """As Ops."""
        mark = (self._block, self._used)
        try:
            yield
        finally:
            self._block, self._used = mark

    def zeros(self, *shape: int, dtype: str = "f32") -> DeviceArray:
        """As Ops. Raises MemoryError."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype].itemsize
        array = DeviceArray(self.allocator.allocate(max(nbytes, 1)), 0, tuple(shape), dtype)
        array.block.fill(0, nbytes, 0)
        return array

    def host(self, array: Any, read: bool = False) -> NDArray[Any]:
        """As Ops: in place where the device's memory is the host's, else a mirror that steps bring up to date."""
        return self._mirrors.of(array, read)

    def mirror(self, array: DeviceArray, host: NDArray[Any], read: bool) -> None:
        """Make memory of the host the mirror of an array of `zeros`, in the place of one of our own."""
        self._mirrors.attach(array, host, read)

    def constant(self, values: NDArray[Any]) -> DeviceArray:
        """As Ops."""
        own = np.ascontiguousarray(values)
        if self.allocator.host:
            return wrap(own)
        array = DeviceArray(self.allocator.allocate(max(own.nbytes, 1)), 0, own.shape, _name(own))
        array.write(own)
        return array

    def begin(self) -> None:
        """As Ops. Raises RuntimeError inside a recording."""
        if self._recorded is not None:
            raise RuntimeError("begin: a step is being recorded already")
        self._recorded = []

    def end(self) -> Step:
        """As Ops. Raises RuntimeError outside a recording."""
        if self._recorded is None:
            raise RuntimeError("end: no step is being recorded")
        launches, self._recorded = self._recorded, None
        return self._mirrors.step(self.launcher.prepare(launches), launches)

    @contextmanager
    def planning(self) -> Iterator[dict[Variant, None]]:
        """Inside, nothing is launched or prepared: the variants of what would be are collected, in order."""
        planned: dict[Variant, None] = {}
        before, self._planned = self._planned, planned
        try:
            yield planned
        finally:
            self._planned = before

    def build(self, variants: Collection[Variant]) -> str:
        """See that all of these can be launched; in words what was done for it. Raises RuntimeError."""
        return "" if self._build is None else self._build(variants)

    def _run(
        self,
        kernel: str,
        grid: Sequence[int],
        values: Sequence[Any],
        warps: int = 4,
        stages: int = 1,
        **constants: Constant,
    ) -> None:
        """Launch a kernel, or record the launch. Arrays of the host are taken as `_array` does."""
        if not all(grid):
            return
        ready: list[Value] = [value if isinstance(value, (int, float)) else self._array(value) for value in values]
        launch = make_launch(kernel, grid, ready, constants, warps, stages)
        if self._planned is not None:
            self._planned[launch.variant] = None
        elif self._recorded is not None:
            self._recorded.append(launch)
        else:
            self._mirrors.step(self.launcher.prepare([launch]), [launch]).run()

    def _array(self, array: Any) -> DeviceArray:
        """An array as a kernel takes it. Small constants of the host (frequencies, maps) are uploaded once.

        Raises TypeError for anything else that is not on the device.
        """
        if isinstance(array, DeviceArray):
            return array
        if self.allocator.host and is_array(array):
            return wrap(array)
        if not isinstance(array, np.ndarray) or array.nbytes > 1 << 20:
            raise TypeError(f"{type(array).__name__} is not an array of this device")
        if id(array) not in self._constants:  # the array is kept, so its id stays its own
            self._constants[id(array)] = (array, self.constant(array))
        return self._constants[id(array)][1]


def _name(values: NDArray[Any]) -> str:
    name = type_name(values) or {"int64": "i64", "int16": "i16"}.get(values.dtype.name, "")
    if not name:
        raise TypeError(f"elements of type {values.dtype} are nothing to a kernel")
    return name
