"""Buffers that host and device share: numpy arrays beside a device's, copied up before a step and down after it.

A step copies no more than the parts of the buffers that its launches see. Where the device's memory is the host's
nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from strata_kernels.gpu.arrays import DTYPES, Block, DeviceArray, HostBlock
from strata_kernels.gpu.launch import Launch
from strata_kernels.ops import Step


@dataclass(eq=False)
class Mirror:
    """The host's side of a block. `read`: the device writes it, the host reads; else the other way round."""

    bytes: NDArray[np.uint8]
    read: bool


@dataclass(frozen=True)
class Part:
    """Bytes start..end-1 of a block, which a step sees."""

    block: Block
    start: int
    end: int


class Mirrors:
    """All mirrors of one Ops. `direct`: the device's memory is the host's."""

    def __init__(self, direct: bool) -> None:
        self._direct = direct
        self._mirrors: WeakKeyDictionary[Block, Mirror] = WeakKeyDictionary()

    def of(self, array: DeviceArray, read: bool) -> NDArray[Any]:
        """The host's side of an array of `zeros`; all arrays of one block have one direction."""
        if self._direct and isinstance(array.block, HostBlock):
            whole = array.block.bytes
        else:
            whole = self._mirror(array.block, read).bytes
        part = whole[array.offset : array.offset + array.nbytes]
        return part.view(DTYPES[array.dtype]).reshape(array.shape)

    def attach(self, array: DeviceArray, host: NDArray[Any], read: bool) -> None:
        """Take the host's memory for the mirror of a whole block."""
        self._mirrors[array.block] = Mirror(host.reshape(-1).view(np.uint8), read)

    def _mirror(self, block: Block, read: bool) -> Mirror:
        found = self._mirrors.get(block)
        if found is None:
            pinned = getattr(block, "pinned", None)
            found = Mirror(pinned(block.nbytes) if pinned else np.zeros(block.nbytes, np.uint8), read)
            if read:
                block.read(0, found.bytes)
            self._mirrors[block] = found
        return found

    def step(self, step: Step, launches: Sequence[Launch]) -> Step:
        """`step` with the copies that its launches need around it."""
        if self._direct:
            return step
        return MirroredStep(step, parts_of(launches), self._mirrors)


class MirroredStep:
    """Copies up, runs, copies down."""

    def __init__(self, step: Step, parts: Sequence[Part], mirrors: WeakKeyDictionary[Block, Mirror]) -> None:
        self._step, self._parts, self._mirrors = step, parts, mirrors

    def run(self) -> None:
        """Raises what the step raises; buffers that the host reads are then undefined."""
        seen = [(part, self._mirrors.get(part.block)) for part in self._parts]
        shared = [(part, mirror) for part, mirror in seen if mirror is not None]
        for part, mirror in shared:
            if not mirror.read:
                part.block.send(part.start, mirror.bytes[part.start : part.end])
        self._step.run()
        for part, mirror in shared:
            if mirror.read:
                part.block.fetch(part.start, mirror.bytes[part.start : part.end])
        for part, _ in shared[:1]:  # one wait for all; the host may then write and read its side again
            part.block.settle()


def parts_of(launches: Sequence[Launch]) -> list[Part]:
    """What launches see of each block: the least range that holds all of it."""
    found: dict[int, Part] = {}
    for launch in launches:
        for value in launch.values:
            if isinstance(value, DeviceArray):
                start, end = value.offset, value.offset + value.nbytes
                known = found.get(id(value.block))
                if known is not None:
                    start, end = min(start, known.start), max(end, known.end)
                found[id(value.block)] = Part(value.block, start, end)
    return list(found.values())
