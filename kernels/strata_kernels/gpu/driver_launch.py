"""A launch with its arguments laid out as a driver takes them, once."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from strata_kernels.gpu.driver_errors import DriverError
from strata_kernels.gpu.driver_session import Session

SLOT = 8  # bytes of an argument: no kernel takes more


@dataclass(frozen=True)
class Function:
    """A kernel of a loaded module. `threads` a block, `shared` bytes of it; `keep`: its module."""

    handle: int
    symbol: str
    threads: int
    shared: int
    keep: object


class PackedLaunch:
    """One launch, to be run again and again. `arguments`: SLOT bytes each."""

    def __init__(self, session: Session, function: Function, grid: tuple[int, int, int], arguments: bytes) -> None:
        """Raises ValueError for arguments that are no whole number of slots."""
        if len(arguments) % SLOT:
            raise ValueError(f"{function.symbol}: {len(arguments)} bytes of arguments are not {SLOT} each")
        self.function, self.grid = function, grid
        self._session = session
        self._values = ctypes.create_string_buffer(arguments, len(arguments))
        start = ctypes.addressof(self._values)
        places = range(start, start + len(arguments), SLOT)
        self._pointers = (ctypes.c_void_p * max(len(places), 1))(*places)
        self._launch = session.library.functions["launch"]
        self._arguments = (function.handle, *grid, function.threads, 1, 1, function.shared)
        self._arguments += (session.stream, ctypes.addressof(self._pointers), None)

    def run(self) -> None:
        """Ask for it. Raises DriverError; what fails on the device is raised by the next wait."""
        self._session.enter()
        self.run_entered()

    def run_entered(self) -> None:
        """The same where the thread has entered the session: in a loop over many."""
        status = self._launch(*self._arguments)
        if status:
            library = self._session.library
            raise DriverError(f"{library.symbols['launch']} of {self.function.symbol}", status, library.words(status))
