"""The stand-in driver library for tests: built once a run, a fresh copy for each test, and what a test tells it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("driver.c")
KINDS = ("memory", "host", "module", "stream", "event", "graph", "exec", "context")
LAUNCH_FAILED = 719
UNUSED = ("-Wno-unused-function",)  # what is left of functions that are not exported

_HOOK = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint32),
    ctypes.c_uint32,
    ctypes.c_uint32,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.c_int,
)


@dataclass(frozen=True)
class Seen:
    """A launch as the library got it. `values`: 8 bytes of each argument."""

    symbol: str
    grid: tuple[int, int, int]
    threads: int
    shared: int
    values: tuple[int, ...]


def build(folder: Path, *without: str) -> Path:
    """Compile it. `without`: "GRAPHS", "LAUNCH". Without a C compiler the tests fail: it is required."""
    target = folder / ("_".join(["standin", *without]) + ".so")
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-pthread", *UNUSED, "-o", str(target), str(SOURCE)]
    subprocess.run([*command, *(f"-DWITHOUT_{name}" for name in without)], check=True, capture_output=True)
    return target


class StandIn:
    """One copy of the library, with state of its own."""

    def __init__(self, built: Path, folder: Path) -> None:
        self.path = Path(shutil.copy(built, folder / f"copy_{built.name}"))
        self._library = ctypes.CDLL(str(self.path))
        self._library.standin_log.restype = ctypes.c_char_p
        self._library.standin_live.restype = ctypes.c_long
        self._library.standin_device.argtypes = [
            ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_size_t,
            ctypes.c_int,
        ]  # fmt: skip
        self._library.standin_know.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_int]
        self._hook = _HOOK(self._called)
        self._library.standin_hook(self._hook)
        self.run: Callable[[Seen], None] | None = None  # what a launch does
        self.seen: list[Seen] = []
        self.raised: list[Exception] = []  # by `run`: the launch then fails

    def device(self, count: int = 1, name: str = "Stand-in", **facts: str | int) -> None:
        """What kind it is: gfx="gfx1100", major=9, minor=0, lanes=32, memory=1 << 30, shared=227 << 10."""
        full: dict[str, str | int] = {"gfx": "gfx1100", "major": 9, "minor": 0, "lanes": 32}
        full |= {"memory": 1 << 30, "shared": 227 << 10} | facts
        self._library.standin_device(
            count, name.encode(), str(full["gfx"]).encode(), full["major"], full["minor"], full["lanes"],
            full["memory"], full["shared"],
        )  # fmt: skip

    def know(self, image: bytes, symbol: str, arguments: int) -> None:
        """Load these bytes as a module that has this function."""
        self._library.standin_know(image, len(image), symbol.encode(), arguments)

    def fail(self, name: str, status: int, at: int = 1) -> None:
        """The `at`-th call of a function from now on returns `status` and does nothing."""
        self._library.standin_fail(name.encode(), at, status)

    def skip(self, name: str, at: int = 1) -> None:
        """The `at`-th call of a function from now on says that all is well and does nothing."""
        self.fail(name, -1, at)

    def misalign(self, nbytes: int) -> None:
        """Memory begins so far behind a multiple of 256."""
        self._library.standin_misalign(nbytes)

    def quiet(self) -> None:
        """From now on no log, no launches seen, no failures: what is left is the caller's own cost."""
        self._library.standin_quiet(1)
        self._library.standin_hook(_HOOK())

    def calls(self) -> list[str]:
        """Names of all calls since the last `forget`."""
        return self._library.standin_log().decode().split()

    def forget(self) -> None:
        """Empty the log."""
        self._library.standin_forget()

    def live(self) -> dict[str, int]:
        """What was not given back, by kind."""
        counts = {kind: self._library.standin_live(i) for i, kind in enumerate(KINDS)}
        return {kind: count for kind, count in counts.items() if count}

    def _called(
        self, symbol: bytes, grid: Sequence[int], threads: int, shared: int, values: Sequence[int], count: int
    ) -> int:
        launch = Seen(symbol.decode(), (grid[0], grid[1], grid[2]), threads, shared, tuple(values[:count]))
        self.seen.append(launch)
        if self.run is not None:
            try:
                self.run(launch)
            except Exception as error:  # noqa: BLE001  (ctypes would print and forget it)
                self.raised.append(error)
                return LAUNCH_FAILED
        return 0
