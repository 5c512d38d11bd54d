"""The open device behind a Driver: the context of each thread, the stream, and what must be given back and when."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any

from strata_kernels.gpu.driver_errors import DriverError, OutOfDeviceMemory
from strata_kernels.gpu.driver_library import DriverLibrary
from strata_kernels.gpu.driver_tables import NON_BLOCKING, OUT_OF_MEMORY

# what is given back first when a driver is closed: what uses others before what is used
GRAPH, EVENT, MODULE, MEMORY, HOST = range(5)


class Session:
    """One device of a library, usable from every thread. Raises DriverError."""

    def __init__(self, library: DriverLibrary, index: int) -> None:
        self.library = library
        self.device = self._device(index)
        self._context = ctypes.c_void_p()
        self._thread = threading.local()
        self._lock = threading.RLock()  # a collection inside it may end objects of this thread: `_give_back` comes back
        self._owned: dict[int, tuple[int, Callable[[], None]]] = {}
        self._later: list[Callable[[], None]] | None = None
        self._next = 0
        self.closed = False
        self.refused: list[str] = []  # what the library said to releases
        if library.table.contexts:
            library.call("context_retain", ctypes.byref(self._context), self.device)
        self.stream = self.make("stream_create", NON_BLOCKING)

    def call(self, name: str, *arguments: Any) -> None:
        """A function of the library, with this device current in this thread. Raises DriverError, RuntimeError."""
        self.enter()
        self.library.call(name, *arguments)

    def make(self, name: str, *arguments: Any) -> int:
        """A function whose first argument is where the new handle goes. Returns the handle; raises DriverError."""
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle.value or 0

    def enter(self) -> None:
        """Make the device current in this thread. Raises RuntimeError once closed."""
        if self.closed:
            raise RuntimeError("the driver has been closed")
        if getattr(self._thread, "entered", False):
            return
        if self.library.table.contexts:
            self.library.call("context_set", self._context)
        else:
            self.library.call("device_set", self.device)
        self._thread.entered = True

    def memory(self) -> tuple[int, int]:
        """Bytes of the device: free, and all."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("memory_info", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, nbytes: int, align: int, where: str) -> tuple[int, int]:
        """Memory of the device: what to give back, and the first aligned address. Raises OutOfDeviceMemory."""
        raw = self._allocate(nbytes, where)
        if raw % align:  # no driver's documentation promises more than any element needs
            self.call("free", raw)
            raw = self._allocate(nbytes + align, where)
        return raw, raw + -raw % align

    def own(self, owner: object, rank: int, name: str, handle: int) -> Callable[[], None]:
        """Give `handle` back through the function `name` when `owner` is gone or the session is closed.

        Returns what gives it back now.
        """
        with self._lock:
            key, self._next = self._next, self._next + 1
            self._owned[key] = (rank, lambda: self._release(name, handle))
        return weakref.finalize(owner, self._give_back, key)

    def hold(self) -> None:
        """Until `go_on`, releases wait: freeing memory would end a capture."""
        with self._lock:
            self._later = []

    def go_on(self) -> None:
        """Do the releases that waited."""
        with self._lock:
            waiting, self._later = self._later or [], None
        for release in waiting:
            release()

    def close(self) -> None:
        """Give back everything, what uses others first; then the stream and the context."""
        if self.closed:
            return
        with self._lock:
            owned, self._owned = self._owned, {}  # at once: what dies from here on finds nothing to give back
        for _, (_, release) in sorted(owned.items(), key=lambda item: (item[1][0], -item[0])):
            release()
        self._release("stream_destroy", self.stream)
        if self.library.table.contexts:
            self._release("context_release", self.device)
        self.closed = True

    def _device(self, index: int) -> int:
        device = ctypes.c_int()
        self.library.call("device_get", ctypes.byref(device), index)
        return device.value

    def _allocate(self, nbytes: int, where: str) -> int:
        try:
            return self.make("alloc", nbytes)
        except DriverError as error:
            if error.number != OUT_OF_MEMORY:
                raise
            raise OutOfDeviceMemory(nbytes, self.memory()[0], where) from error

    def _give_back(self, key: int) -> None:
        with self._lock:
            _, release = self._owned.pop(key, (0, None))
            if release is not None and self._later is not None:
                self._later.append(release)
                return
        if release is not None:
            release()

    def _release(self, name: str, handle: int) -> None:
        """Never raises: this runs when objects die, and after a failure that took the context with it."""
        try:
            if name in ("free", "host_free", "graph_free", "module_unload"):
                self.call("stream_wait", self.stream)  # nothing that still runs may use it
            self.call(name, handle)
        except DriverError as error:
            self.refused.append(str(error))
