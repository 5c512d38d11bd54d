"""A GPU through its vendor's driver library: memory, modules, launches, graphs. ctypes only, no package of a vendor.

One stream carries everything in order, so what was uploaded is there for the next launch, and a download waits for all
before it. Any thread may call; two that launch at once need a lock of their own, for order.
"""

from __future__ import annotations

import ctypes
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata_kernels.gpu.arrays import ALIGNMENT
from strata_kernels.gpu.driver_errors import DriverError, DriverUnavailable
from strata_kernels.gpu.driver_launch import Function, PackedLaunch
from strata_kernels.gpu.driver_library import DriverLibrary
from strata_kernels.gpu.driver_session import EVENT, GRAPH, HOST, MEMORY, MODULE, Session
from strata_kernels.gpu.driver_tables import MAX_DYNAMIC_SHARED, NO_DEVICE, OUT_OF_MEMORY, TABLES, THREAD_LOCAL

PROPERTIES = 16 << 10  # bytes; the structure had 792 and 1472 in the versions known


def open_driver(kind: str, index: int = 0, library: Path | None = None, graphs: bool = True) -> Driver:
    """Device `index` of the driver "cuda", "hip" or "musa".

    `library` instead of the system's; `graphs=False` for devices on which they are known to fail.
    Raises DriverUnavailable.
    """
    opened = DriverLibrary(TABLES[kind], library)
    try:
        opened.call("init", 0)
        count = ctypes.c_int()
        opened.call("device_count", ctypes.byref(count))
    except DriverError as error:
        what = "finds no device" if error.number == NO_DEVICE else "does not start"
        raise DriverUnavailable(f"the {kind} driver {what}: {error}; {opened.table.remedy}") from error
    if not 0 <= index < count.value:
        raise DriverUnavailable(f"there is no {kind} device {index}: the driver has {count.value}, from 0")
    return Driver(opened, index, graphs)


class Driver:
    """One device. `arch`: "sm_90", "gfx1100", "mp_22"; `warp`: lanes; `units`: of computing; `shared`: bytes a block.

    `graphs`: whether launches can be captured; `graphs_refused`: why not, in the driver's words, once it refused.
    """

    def __init__(self, library: DriverLibrary, index: int, graphs: bool = True) -> None:
        """Raises DriverError, DriverUnavailable."""
        self.kind = library.table.kind
        self.session = Session(library, index)
        self._close = weakref.finalize(self, self.session.close)
        table = library.table
        self.name = self._name()
        self.warp, self.units = self._attribute(table.warp), self._attribute(table.units)
        self.shared = self._attribute(table.shared)
        self.arch = self._arch()
        self.graphs = graphs and library.has_graphs
        self.graphs_refused = ""

    def close(self) -> None:
        """Give back everything that is still held. Later calls raise RuntimeError."""
        self._close()

    def memory(self) -> tuple[int, int]:
        """Bytes of the device: free, and all."""
        return self.session.memory()

    def allocate(self, nbytes: int) -> DriverBlock:
        """Uninitialised memory, at a multiple of 256 bytes. Raises OutOfDeviceMemory."""
        raw, address = self.session.allocate(max(nbytes, 1), ALIGNMENT, self.name)
        block = DriverBlock(self, address, nbytes)
        self.session.own(block, MEMORY, "free", raw)
        return block

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Zeroed memory of the host that the device reads and writes without a copy between. Raises MemoryError."""
        try:
            start = self.session.make("host_alloc", max(nbytes, 1), 0)
        except DriverError as error:
            if error.number != OUT_OF_MEMORY:
                raise
            raise MemoryError(
                f"the driver cannot pin {nbytes / 2**20:,.1f} MiB of the host's memory: {error}"
            ) from error
        memory: Any = (ctypes.c_uint8 * max(nbytes, 1)).from_address(start)
        self.session.own(memory, HOST, "host_free", start)
        memory.driver = self
        array = np.frombuffer(memory, np.uint8)[:nbytes]
        array[:] = 0
        return array

    def upload(self, address: int, data: NDArray[Any], wait: bool = True) -> None:
        """Bytes of the host to the device. Without `wait`, `data` must be pinned and stay as it is until `wait()`."""
        if data.nbytes:
            self.session.call("upload", address, data.ctypes.data, data.nbytes, self.session.stream)
        if wait:
            self.wait()

    def download(self, out: NDArray[Any], address: int, wait: bool = True) -> None:
        """Bytes of the device to the host, after everything before. Without `wait`, `out` is filled at `wait()`."""
        if out.nbytes:
            self.session.call("download", out.ctypes.data, address, out.nbytes, self.session.stream)
        if wait:
            self.wait()

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Between addresses of the device, in order with what runs."""
        if nbytes:
            self.session.call("copy", target, source, nbytes, self.session.stream)

    def fill(self, address: int, value: int, nbytes: int) -> None:
        """Set bytes, in order with what runs."""
        if nbytes:
            self.session.call("fill", address, value, nbytes, self.session.stream)

    def wait(self) -> None:
        """Until all that was asked for is done. Raises DriverError for what failed meanwhile."""
        self.session.call("stream_wait", self.session.stream)

    def event(self) -> Event:
        """A mark in the stream, not yet set."""
        return Event(self)

    def load(self, image: bytes) -> Module:
        """Code for this device. Raises DriverError."""
        return Module(self, image)

    def pack(self, function: Function, grid: tuple[int, int, int], arguments: bytes) -> PackedLaunch:
        """A launch that can be run many times. `arguments`: 8 bytes each, as the kernel takes them."""
        return PackedLaunch(self.session, function, grid, arguments)

    def capture(self, work: Callable[[], None]) -> Graph | None:
        """What `work` asks of this driver as a graph; None where there are none, or where the driver refuses to.

        In both cases nothing of it is done. Raises what `work` raises.
        """
        if not self.graphs:
            return None
        try:
            return Graph(self, work)
        except GraphRefused as refusal:
            self.graphs, self.graphs_refused = False, str(refusal)
            return None

    def _name(self) -> str:
        text = ctypes.create_string_buffer(256)
        self.session.call("device_name", text, len(text), self.session.device)
        return text.value.decode(errors="replace")

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.session.call("attribute", ctypes.byref(value), number, self.session.device)
        return value.value

    def _arch(self) -> str:
        table = self.session.library.table
        if table.major:
            return f"{table.arch_prefix}{self._attribute(table.major)}{self._attribute(table.minor)}"
        # The structure's layout depends on the library's version, so the name is looked for, not read at an offset. It
        # may carry features: "gfx90a:sramecc+:xnack-".
        properties = ctypes.create_string_buffer(PROPERTIES)
        self.session.call("properties", properties, self.session.device)
        found = set(re.findall(rb"\bgfx[0-9a-f]{3,5}\b", properties.raw[256:]))
        if len(found) != 1:
            raise DriverUnavailable(
                f"{self.name}: the driver names {len(found)} architectures {sorted(found)}, not one"
            )
        return found.pop().decode()


class DriverBlock:
    """Memory of a device: see arrays.Block. `nbytes` may be 0."""

    def __init__(self, driver: Driver, address: int, nbytes: int) -> None:
        self.driver, self.address, self.nbytes = driver, address, nbytes

    def read(self, offset: int, out: NDArray[np.uint8]) -> None:
        """As Block."""
        self.driver.download(out, self.address + offset)

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        """As Block."""
        self.driver.upload(self.address + offset, data)

    def send(self, offset: int, data: NDArray[np.uint8]) -> None:
        """As Block."""
        self.driver.upload(self.address + offset, data, wait=False)

    def fetch(self, offset: int, out: NDArray[np.uint8]) -> None:
        """As Block."""
        self.driver.download(out, self.address + offset, wait=False)

    def settle(self) -> None:
        """As Block."""
        self.driver.wait()

    def fill(self, offset: int, nbytes: int, value: int) -> None:
        """As Block."""
        self.driver.fill(self.address + offset, value, nbytes)

    def copy(self, offset: int, source: Any, source_offset: int, nbytes: int) -> None:
        """As Block."""
        self.driver.copy(self.address + offset, source.address + source_offset, nbytes)

    def like(self, nbytes: int) -> DriverBlock:
        """A new block beside this one."""
        return self.driver.allocate(nbytes)

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Memory of the host for what goes in and out."""
        return self.driver.pinned(nbytes)


class DriverAllocator:
    """Blocks of a device: see arrays.Allocator."""

    host = False

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def allocate(self, nbytes: int) -> DriverBlock:
        """As Allocator."""
        return self.driver.allocate(nbytes)


class Module:
    """Loaded code, unloaded when neither it nor a function of it is held."""

    def __init__(self, driver: Driver, image: bytes) -> None:
        self.driver = driver
        self._handle = driver.session.make("module_load", image)
        driver.session.own(self, MODULE, "module_unload", self._handle)

    def function(self, symbol: str, threads: int, shared: int = 0) -> Function:
        """`threads` a block; `shared`: bytes of dynamic shared memory. Raises DriverError, DriverUnavailable."""
        session, table = self.driver.session, self.driver.session.library.table
        handle = session.make("module_function", self._handle, symbol.encode())
        if shared > self.driver.shared:
            raise DriverUnavailable(
                f"{symbol} needs {shared:,} bytes of shared memory; a block of {self.driver.name} has "
                f"{self.driver.shared:,}"
            )
        if table.shared_freely and shared > table.shared_freely:
            session.call("function_set", handle, MAX_DYNAMIC_SHARED, shared)
        return Function(handle, symbol, threads, shared, keep=self)


class Event:
    """A mark in a driver's stream."""

    def __init__(self, driver: Driver) -> None:
        self._session = driver.session
        self._handle = driver.session.make("event_create", 0)
        self._session.own(self, EVENT, "event_destroy", self._handle)
        self._driver = driver

    def record(self) -> None:
        """Set it behind what was asked for so far."""
        self._session.call("event_record", self._handle, self._session.stream)

    def wait(self) -> None:
        """Until the device has come to it."""
        self._session.call("event_wait", self._handle)

    def since(self, earlier: Event) -> float:
        """Milliseconds on the device between two events that were reached."""
        found = ctypes.c_float()
        self._session.call("event_elapsed", ctypes.byref(found), earlier._handle, self._handle)
        return found.value


class GraphRefused(RuntimeError):
    """The driver captures nothing; its words."""


class Graph:
    """Captured work: one call launches it all. Holds `work`, so what it uses stays. Raises GraphRefused, as `work`."""

    def __init__(self, driver: Driver, work: Callable[[], None]) -> None:
        self._driver, self._session, self._work = driver, driver.session, work
        self._handle = self._instantiate(self._capture(work))
        self._free = self._session.own(self, GRAPH, "graph_free", self._handle)

    def launch(self) -> None:
        """Ask for all of it, in order with what was asked before. Raises DriverError."""
        self._session.call("graph_launch", self._handle, self._session.stream)

    def close(self) -> None:
        """Give it back now."""
        self._free()

    def _capture(self, work: Callable[[], None]) -> int:
        self._session.hold()
        try:
            self._refusable("capture_begin", self._session.stream, THREAD_LOCAL)
            try:
                work()
            except BaseException:
                self._abandon()
                raise
            captured = ctypes.c_void_p()
            self._refusable("capture_end", self._session.stream, ctypes.byref(captured))
            return captured.value or 0
        finally:
            self._session.go_on()

    def _abandon(self) -> None:
        """End the capture of work that failed, whatever the driver says: it would refuse everything else till then."""
        captured = ctypes.c_void_p()
        try:
            self._session.call("capture_end", self._session.stream, ctypes.byref(captured))
        except DriverError:
            return  # it gave no graph
        if captured.value:
            self._session.call("graph_destroy", captured)

    def _instantiate(self, captured: int) -> int:
        made = ctypes.c_void_p()
        try:
            self._refusable("graph_make", ctypes.byref(made), captured, None, 0, 0)
        finally:
            self._session.call("graph_destroy", captured)
        return made.value or 0

    def _refusable(self, name: str, *arguments: Any) -> None:
        try:
            self._session.call(name, *arguments)
        except DriverError as error:
            if error.lost:
                raise
            raise GraphRefused(str(error)) from error
