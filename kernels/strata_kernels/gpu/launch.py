"""What is launched: a variant of a kernel, a grid and values; and who can launch it.

A variant is one compiled form: its key names it in a bundle. It follows from the values alone (types of arrays and
numbers, whether an address is a multiple of 16, the constants), so whoever calls the same ops asks for the same
variants: that is how they are known before there is a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from strata_kernels.gpu.arrays import DeviceArray
from strata_kernels.ops import Step

Value = DeviceArray | int | float
Constant = int | bool | str | float
Grid = tuple[int, int, int]

MOST_BLOCKS = (2**31 - 1, 65535, 65535)  # of every driver


@dataclass(frozen=True)
class Variant:
    """One compiled form of a kernel.

    `types`: of the arguments that are no constants, in order: "*fp32", "*i8", ... ("?" behind: not 16-byte aligned),
    "i32", "fp32". `warps`: of 32 lanes (128 on an M1000); `stages`: of software pipelining.
    """

    kernel: str
    types: tuple[str, ...]
    constants: tuple[tuple[str, Constant], ...]
    warps: int = 4
    stages: int = 1

    @property
    def key(self) -> str:
        """The same text for the same variant, on every machine."""
        constants = ",".join(f"{name}={value}" for name, value in self.constants)
        return f"{self.kernel}({','.join(self.types)})[{constants}]w{self.warps}s{self.stages}"


@dataclass(frozen=True)
class Launch:
    """A variant with its arguments, in the order of its types, and how many programs in each dimension."""

    variant: Variant
    grid: Grid
    values: tuple[Value, ...]


def make_launch(
    kernel: str,
    grid: Sequence[int],
    values: Sequence[Value],
    constants: Mapping[str, Constant],
    warps: int = 4,
    stages: int = 1,
) -> Launch:
    """Raises ValueError for a grid or a number that no driver takes (a bug of the op)."""
    full = (*grid, 1, 1)[:3]
    for blocks, most in zip(full, MOST_BLOCKS, strict=True):
        if not 0 < blocks <= most:
            raise ValueError(f"{kernel}: a grid of {tuple(grid)} cannot be launched")
    variant = Variant(kernel, tuple(type_of(v) for v in values), tuple(sorted(constants.items())), warps, stages)
    return Launch(variant, (full[0], full[1], full[2]), tuple(values))


def type_of(value: Value) -> str:
    """Triton's name of an argument's type. Raises ValueError for an integer of more than 32 bits."""
    if isinstance(value, DeviceArray):
        return value.pointer_type
    if isinstance(value, float):
        return "fp32"
    if not -(2**31) <= value < 2**31:
        raise ValueError(f"{value} does not fit 32 bits")
    return "i32"


class Launcher(Protocol):
    """Runs launches on one device."""

    def prepare(self, launches: Sequence[Launch]) -> Step:
        """A step that runs them in order, now and again: a graph where the device has them."""
        ...
