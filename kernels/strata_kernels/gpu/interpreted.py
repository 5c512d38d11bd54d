"""Launches in Triton's interpreter, on host memory: how kernels are tested without a device. Slow: 5 ms a program.

TRITON_INTERPRET=1 must be in the environment before triton is first imported; tests/conftest.py sets it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from strata_kernels.gpu.arrays import DeviceArray
from strata_kernels.gpu.launch import Launch, Value
from strata_kernels.gpu.table import find_kernel


class InterpretedLauncher:
    """Runs launches one after the other. Raises RuntimeError when triton was imported to compile."""

    def prepare(self, launches: Sequence[Launch]) -> InterpretedStep:
        """As Launcher."""
        return InterpretedStep(tuple(launches))


class InterpretedStep:
    """Launches to be interpreted."""

    def __init__(self, launches: tuple[Launch, ...]) -> None:
        self._launches = launches

    def run(self) -> None:
        """All of them in order."""
        for launch in self._launches:
            interpret(launch)


def interpret(launch: Launch) -> None:
    """Run one launch. Raises RuntimeError when triton was imported to compile."""
    kernel = find_kernel(launch.variant.kernel)
    if type(kernel).__name__ != "InterpretedFunction":
        raise RuntimeError("set TRITON_INTERPRET=1 before triton is imported")
    values = [_tensor(value) for value in launch.values]
    with np.errstate(all="ignore"):  # a device knows no warnings
        kernel[launch.grid](*values, **dict(launch.variant.constants))


def _tensor(value: Value) -> Any:
    """Torch's view of an array's memory, which is how the interpreter takes pointers."""
    if not isinstance(value, DeviceArray):
        return value
    import torch

    kinds = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.int16, "i16": torch.int16, "i32": torch.int32}
    kinds |= {"i64": torch.int64, "u8": torch.uint8, "i8": torch.int8}
    if not value.nbytes:
        return torch.empty(0, dtype=kinds[value.dtype])
    memory = (ctypes.c_uint8 * value.nbytes).from_address(value.address)
    return torch.frombuffer(memory, dtype=kinds[value.dtype])
