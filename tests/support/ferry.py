"""Runs the shared operation tests on a device whose memory is not the host's: their tensors travel there and back.

Every tensor in a call (in weights, caches and rows too) gets an array on the device, the same for the same memory. They
are brought up to date before a step and back after it, so a test sees its tensors change as on the CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch

from strata_kernels.arrays import address, is_array
from strata_kernels.gpu.arrays import DTYPES, DeviceArray, wrap
from strata_kernels.gpu.launch import Launch, Launcher, Variant
from strata_kernels.gpu.ops import GpuOps
from strata_kernels.ops import Step


class Ferry:
    """An Ops for tests over GpuOps."""

    name = "triton"

    def __init__(self, ops: GpuOps) -> None:
        self.ops = ops
        self._pairs: dict[tuple[int, int, tuple[int, ...], str], tuple[Any, DeviceArray]] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.ops, name)
        return self._call(found) if callable(found) else found

    def _call(self, op: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            args = tuple(self._sent(arg) for arg in args)
            kwargs = {name: self._sent(arg) for name, arg in kwargs.items()}
            if self.ops.recording:
                return op(*args, **kwargs)
            self._up()
            result = op(*args, **kwargs)
            self._down()
            return result

        return call

    def end(self) -> Any:
        """As Ops."""
        return _Step(self, self.ops.end())

    def host(self, array: Any, read: bool = False) -> Any:
        """As Ops."""
        return self.ops.host(array, read)

    def begin(self) -> None:
        """As Ops."""
        self.ops.begin()

    def scope(self) -> Any:
        """As Ops."""
        return self.ops.scope()

    def _sent(self, thing: Any) -> Any:
        if is_array(thing):
            return self._array(thing)
        if isinstance(thing, (list, tuple)):
            return type(thing)(self._sent(one) for one in thing)
        if dataclasses.is_dataclass(thing) and not isinstance(thing, (type, DeviceArray)):
            changed = {f.name: self._sent(getattr(thing, f.name)) for f in dataclasses.fields(thing) if f.init}
            return dataclasses.replace(thing, **changed)
        return thing

    def _array(self, tensor: Any) -> DeviceArray:
        shown = wrap(tensor)
        key = (address(tensor), tensor.nbytes, shown.shape, shown.dtype)
        if key not in self._pairs:
            block = self.ops.allocator.allocate(max(1, tensor.nbytes))
            self._pairs[key] = (tensor, DeviceArray(block, 0, shown.shape, shown.dtype))
        return self._pairs[key][1]

    def _up(self) -> None:
        for tensor, array in self._pairs.values():
            array.write(_numpy(tensor, array))

    def _down(self) -> None:
        for tensor, array in self._pairs.values():
            if array.nbytes:
                _numpy(tensor, array)[...] = array.numpy()


class Building:
    """A launcher that has what is missing compiled first: tests ask for what no model asks for."""

    def __init__(self, launcher: Launcher, build: Callable[[Collection[Variant]], str]) -> None:
        self._launcher, self._build = launcher, build

    def prepare(self, launches: Sequence[Launch]) -> Step:
        """As Launcher."""
        self._build({launch.variant for launch in launches})
        return self._launcher.prepare(launches)


class _Step:
    def __init__(self, ferry: Ferry, step: Any) -> None:
        self._ferry, self._step = ferry, step

    def run(self) -> None:
        """Up, run, down."""
        self._ferry._up()
        self._step.run()
        self._ferry._down()


def _numpy(tensor: Any, array: DeviceArray) -> np.ndarray[Any, Any]:
    """The tensor's memory as numpy, in the type that stands for it."""
    if isinstance(tensor, torch.Tensor):
        tensor = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return tensor.view(DTYPES[array.dtype])
