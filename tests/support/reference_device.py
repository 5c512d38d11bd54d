"""The plain operations behind a device's face: arrays in memory that the host must not touch, mirrors, workspace.

What an engine does with a device is tested on it without the cost of the interpreter. Its numbers are the reference's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from strata_backends.base import Choice, ChosenOps, DeviceInfo, Profile
from strata_kernels.arrays import NUMPY_TYPES
from strata_kernels.gpu.arrays import DeviceArray, HostAllocator, HostBlock
from strata_kernels.gpu.core import Core
from strata_kernels.ops import Weight
from strata_kernels.reference.ops import ReferenceOps, ReferenceStep
from strata_kernels.reference.tensors import tensor
from strata_kernels.split.roles import ROLES


class ReferenceDevice(Core):
    """An Ops on a device of its own."""

    name = "reference"

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(prepare=lambda launches: None), HostAllocator(host=False))  # type: ignore[arg-type]
        self._reference = ReferenceOps()
        self._calls: list[Callable[[], None]] = []
        self._seen: list[DeviceArray] = []
        self.ran: list[str] = []  # names of the operations that ran

    def pack(self, weight: Weight) -> Weight:
        return dataclasses.replace(weight, data=self.constant(np.ascontiguousarray(weight.data)))

    def largest(self, logits: Any, ids: Any, values: Any) -> None:
        self._keep("largest", logits, ids, values)

    def begin(self) -> None:
        super().begin()
        self._calls, self._seen = [], []

    def end(self) -> Any:
        calls, seen = self._calls, self._seen
        self._recorded = None
        self._calls, self._seen = [], []
        launches: Any = [SimpleNamespace(values=seen)]
        return self._mirrors.step(ReferenceStep(calls), launches)

    def __getattr__(self, name: str) -> Any:
        if name not in ROLES:
            raise AttributeError(name)
        return partial(self._keep, name)

    def _keep(self, name: str, *args: Any, **kwargs: Any) -> None:
        seen: list[DeviceArray] = []
        args = tuple(self._shown(arg, seen) for arg in args)
        kwargs = {key: self._shown(arg, seen) for key, arg in kwargs.items()}
        call = partial(self._run_now, name, args, kwargs)
        if self._planned is not None:
            return
        if self._recorded is not None:
            self._calls.append(call)
            self._seen += seen
        else:
            launches: Any = [SimpleNamespace(values=seen)]
            self._mirrors.step(ReferenceStep([call]), launches).run()

    def _run_now(self, name: str, args: Any, kwargs: Any) -> None:
        self.ran.append(name)
        if name == "largest":
            logits, ids, values = (tensor(array) for array in args)
            order = logits.sort(dim=1, descending=True, stable=True)
            values[:], ids[:] = order.values[:, : ids.shape[1]], order.indices[:, : ids.shape[1]]
            return
        getattr(self._reference, name)(*args, **kwargs)

    def _shown(self, thing: Any, seen: list[DeviceArray]) -> Any:
        """Arguments with numpy over a device's memory in the place of its arrays; numpy of the host is refused."""
        if isinstance(thing, DeviceArray):
            assert isinstance(thing.block, HostBlock)
            seen.append(thing)
            part = thing.block.bytes[thing.offset : thing.offset + thing.nbytes]
            return part.view(NUMPY_TYPES[thing.dtype]).reshape(thing.shape)
        if isinstance(thing, np.ndarray):
            assert thing.nbytes <= 1 << 16, "an array of the host reached the device"
            return thing
        if isinstance(thing, (list, tuple)):
            return type(thing)(self._shown(one, seen) for one in thing)
        if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
            names = [one.name for one in dataclasses.fields(thing) if one.init]
            return dataclasses.replace(thing, **{name: self._shown(getattr(thing, name), seen) for name in names})
        return thing


class DeviceBackend:
    """A backend around any Ops."""

    name = "test device"
    device = "test:0"

    def __init__(self, ops: Any) -> None:
        self.made = ops

    def info(self) -> DeviceInfo:
        return DeviceInfo("test device", "none", 16 << 30, 8 << 30)

    def ops(self, profile: Profile) -> ChosenOps:
        return ChosenOps(self.made, (Choice("kernels", "reference", "a test wants them"),))
