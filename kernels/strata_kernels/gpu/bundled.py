"""Launches of kernels that were compiled before, through a driver: nothing is ever compiled here."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from strata_kernels.gpu.arrays import DeviceArray
from strata_kernels.gpu.driver import Driver
from strata_kernels.gpu.driver_errors import DriverError, MissingVariant, WrongBundle
from strata_kernels.gpu.driver_launch import Function, PackedLaunch
from strata_kernels.gpu.driver_session import Session
from strata_kernels.gpu.launch import Launch, Value, Variant

FEW_LAUNCHES = 2  # fewer are not worth a graph
SCRATCH = struct.pack("<QQ", 0, 0)  # a compiled kernel's last two arguments: scratch memory, which ours never need


class Compiled(Protocol):
    """One compiled variant. `threads` a block, `shared` bytes of dynamic memory, `types` of its arguments in order."""

    @property
    def code(self) -> bytes: ...
    @property
    def symbol(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def shared(self) -> int: ...
    @property
    def types(self) -> tuple[str, ...]: ...


class Store(Protocol):
    """Compiled variants of one device."""

    arch: str

    def load(self, variant: Variant) -> Compiled | None:
        """A variant, its bytes checked; None: not there."""
        ...


@dataclass
class Counts:
    """What a launcher has done. `compiles` stays 0: it is there to be looked at."""

    launches: int = 0
    graphs: int = 0
    graph_launches: int = 0
    loads: int = 0
    compiles: int = 0


class BundleLauncher:
    """Launches on `driver` what `store` holds. Raises WrongBundle when that is for another device."""

    def __init__(self, driver: Driver, store: Store, checked: bool = False) -> None:
        """`checked`: wait after every launch and make no graphs: slow, but what fails on the device is named."""
        if store.arch != driver.arch:
            raise WrongBundle(
                f"the compiled kernels are for {store.arch}, {driver.name} is {driver.arch}: "
                f"build them by `llmrun kernels build --arch {driver.arch} --model REF`"
            )
        self.driver, self.store, self.checked = driver, store, checked
        self.counts = Counts()
        self._functions: dict[Variant, Function] = {}

    def prepare(self, launches: Sequence[Launch]) -> DriverStep:
        """As Launcher: a graph where the driver has them. Raises MissingVariant, DriverError, what the store raises."""
        return DriverStep(self, launches)

    def pack(self, launch: Launch) -> PackedLaunch:
        """One launch, ready to be run. Raises as `prepare`."""
        return self.driver.pack(self.function(launch.variant), launch.grid, pack_values(launch))

    def function(self, variant: Variant) -> Function:
        """A variant's code on the device, loaded when first asked for. Raises as `prepare`."""
        found = self._functions.get(variant)
        if found is None:
            found = self._functions[variant] = self._load(variant)
        return found

    def _load(self, variant: Variant) -> Function:
        compiled = self.store.load(variant)
        if compiled is None:
            raise MissingVariant(variant.key, f"the store of kernels for {self.store.arch}")
        if tuple(compiled.types) != variant.types:
            raise WrongBundle(f"{variant.key}: compiled for arguments {', '.join(compiled.types)}")
        self.counts.loads += 1
        module = self.driver.load(compiled.code)
        return module.function(compiled.symbol, compiled.threads, compiled.shared)


class DriverStep:
    """Launches in order: a graph, or one by one. Holds their arrays' memory."""

    def __init__(self, launcher: BundleLauncher, launches: Sequence[Launch]) -> None:
        """Raises as BundleLauncher.prepare."""
        self._counts, self._session = launcher.counts, launcher.driver.session
        self._keep = tuple(
            value.block for launch in launches for value in launch.values if isinstance(value, DeviceArray)
        )
        self._packed = [launcher.pack(launch) for launch in launches]
        self._launch_all = partial(_run_checked if launcher.checked else _run_all, self._session, self._packed)
        worth = len(launches) >= FEW_LAUNCHES and not launcher.checked
        self._graph = launcher.driver.capture(self._launch_all) if worth else None
        self._counts.graphs += self._graph is not None

    def run(self) -> None:
        """Ask the device for all of it; what fails there is raised by the next wait. Raises DriverError."""
        self._counts.launches += len(self._packed)
        if self._graph is not None:
            self._counts.graph_launches += 1
            self._graph.launch()
        else:
            self._launch_all()


def pack_values(launch: Launch) -> bytes:
    """Arguments as a compiled kernel takes them, 8 bytes each: those of the variant's types, then no scratch memory."""
    return b"".join(map(_pack, launch.variant.types, launch.values)) + SCRATCH


def _pack(kind: str, value: Value) -> bytes:
    if isinstance(value, DeviceArray):
        return struct.pack("<Q", value.address)
    return struct.pack("<f4x", value) if kind == "fp32" else struct.pack("<i4x", int(value))


def _run_all(session: Session, packed: Sequence[PackedLaunch]) -> None:
    session.enter()
    for one in packed:
        one.run_entered()


def _run_checked(session: Session, packed: Sequence[PackedLaunch]) -> None:
    for one in packed:
        one.run()
        try:
            session.call("stream_wait", session.stream)
        except DriverError as error:
            raise DriverError(f"{one.function.symbol} with {one.grid} blocks", error.number, error.words) from error
