"""A driver's library, opened: its functions by our names, their statuses checked."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from strata_kernels.gpu.driver_errors import DriverError, DriverUnavailable
from strata_kernels.gpu.driver_tables import GRAPHS, SIGNATURES, TYPES, Table


class DriverLibrary:
    """All functions of one table that the library has. Raises DriverUnavailable."""

    def __init__(self, table: Table, path: Path | None = None) -> None:
        """`path` instead of the table's own names."""
        self.table = table
        self._library, self.path = _open(table, path)
        self.functions: dict[str, Any] = {}
        self.symbols: dict[str, str] = {}
        for name, symbols in table.names.items():
            self._find(name, symbols)

    @property
    def has_graphs(self) -> bool:
        """Whether all functions of graphs are there."""
        return all(name in self.functions for name in GRAPHS)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function by our name. Raises DriverError."""
        status = self.functions[name](*arguments)
        if status:
            raise DriverError(self.symbols[name], status, self.words(status))

    def words(self, status: int) -> str:
        """What the library calls a status."""
        function = self.functions["error_text"]
        if self.table.text_returned:
            text = function(status)
        else:
            found = ctypes.c_char_p()
            text = None if function(status, ctypes.byref(found)) else found.value
        return text.decode(errors="replace") if text else "the driver has no words for it"

    def _find(self, name: str, symbols: tuple[str, ...]) -> None:
        for symbol in symbols:
            function = getattr(self._library, symbol, None)
            if function is not None:
                _declare(function, name, self.table)
                self.functions[name], self.symbols[name] = function, symbol
                return
        if name not in GRAPHS:
            raise DriverUnavailable(
                f"{self.path} has no function {' or '.join(symbols)}: it is too old, or no {self.table.kind} "
                f"driver; {self.table.remedy}"
            )


def _declare(function: Any, name: str, table: Table) -> None:
    if name == "error_text" and table.text_returned:
        function.argtypes, function.restype = [ctypes.c_int], ctypes.c_char_p
    else:
        function.argtypes = [TYPES[letter] for letter in SIGNATURES[name]]
        function.restype = ctypes.c_int


def _open(table: Table, path: Path | None) -> tuple[ctypes.CDLL, str]:
    tried: list[str] = []
    for name in [str(path)] if path else table.libraries:
        try:
            return ctypes.CDLL(name), name
        except OSError as error:
            tried.append(f"{name}: {error}")
    raise DriverUnavailable(f"no {table.kind} driver library could be opened ({'; '.join(tried)}); {table.remedy}")
