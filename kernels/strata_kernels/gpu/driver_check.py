"""Does a driver do what we ask? Memory, order, events and graphs, without a kernel: the first thing to run on a card.

Each check compares bytes, so it fails where a real driver behaves otherwise than the stand-in of the tests does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strata_kernels.gpu.driver import Driver
from strata_kernels.gpu.driver_errors import DriverError

SEED = 7


@dataclass(frozen=True)
class DriverCheck:
    """One check. `text`: what was found; for a failure the error."""

    name: str
    ok: bool
    text: str


def check_driver(driver: Driver, nbytes: int = 64 << 20) -> list[DriverCheck]:
    """All checks, with blocks of `nbytes`; ends early when the device is lost. Three blocks are held at most."""
    done: list[DriverCheck] = []
    for name, check in CHECKS.items():
        try:
            done.append(DriverCheck(name, True, check(driver, nbytes)))
        except DriverError as error:
            done.append(DriverCheck(name, False, str(error)))
            if error.lost:
                break
        except (MemoryError, ValueError) as error:
            done.append(DriverCheck(name, False, str(error)))
    return done


def _memory(driver: Driver, nbytes: int) -> str:
    data, out = _noise(nbytes), np.zeros(nbytes, np.uint8)
    free = driver.memory()[0]
    block = driver.allocate(nbytes)
    block.write(0, data)
    block.read(0, out)
    _same(out, data, "what was uploaded")
    block.write(nbytes // 2 + 1, data[:100])
    block.read(nbytes // 2 + 1, out[:100])
    _same(out[:100], data[:100], "what was uploaded at an odd place")
    return f"{nbytes:,} bytes there and back; {free:,} bytes were free"


def _order(driver: Driver, nbytes: int) -> str:
    """Fills, copies and a download that were only asked for must follow each other."""
    first, second, out = driver.allocate(nbytes), driver.allocate(nbytes), driver.pinned(nbytes)
    for value in range(1, 6):
        first.fill(0, nbytes, value)
        second.copy(0, first, 0, nbytes)
    first.fill(0, nbytes, 0)
    second.fetch(0, out)
    second.settle()
    _same(out, np.full(nbytes, 5, np.uint8), "the last of five copies")
    return "fills, copies and downloads stay in order"


def _graph(driver: Driver, nbytes: int) -> str:
    block, given, out = driver.allocate(nbytes), driver.pinned(nbytes), driver.pinned(nbytes)

    def work() -> None:
        block.send(0, given)
        block.fill(0, nbytes // 2, 9)
        block.fetch(0, out)

    graph = driver.capture(work)
    if graph is None:
        return f"none: {driver.graphs_refused or 'the driver has no graphs, or they are off'}"
    for seed in range(3):
        given[:] = _noise(nbytes, seed)
        graph.launch()
        driver.wait()
        _same(out[nbytes // 2 :], given[nbytes // 2 :], f"what graph launch {seed + 1} took")
        _same(out[: nbytes // 2], np.full(nbytes // 2, 9, np.uint8), f"what graph launch {seed + 1} filled")
    graph.close()
    return "an upload, a fill and a download, launched three times"


def _speed(driver: Driver, nbytes: int) -> str:
    first, second, host = driver.allocate(nbytes), driver.allocate(nbytes), driver.pinned(nbytes)
    ways: dict[str, Callable[[], None]] = {
        "up": lambda: first.send(0, host),
        "down": lambda: first.fetch(0, host),
        "on the device (read and written)": lambda: second.copy(0, first, 0, nbytes),
    }
    moved = {name: nbytes * (2 if "device" in name else 1) for name in ways}
    return ", ".join(f"{_rate(driver, way, moved[name]):.1f} GB/s {name}" for name, way in ways.items())


def _rate(driver: Driver, way: Callable[[], None], nbytes: int, times: int = 5) -> float:
    """GB/s by the device's clock, after one unmeasured."""
    start, end = driver.event(), driver.event()
    way()
    start.record()
    for _ in range(times):
        way()
    end.record()
    end.wait()
    return times * nbytes / max(end.since(start), 1e-6) / 1e6


CHECKS: dict[str, Callable[[Driver, int], str]] = {
    "memory": _memory,
    "order": _order,
    "graphs": _graph,
    "speed": _speed,
}


def _noise(nbytes: int, seed: int = SEED) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def _same(found: NDArray[np.uint8], wanted: NDArray[np.uint8], what: str) -> None:
    wrong = int(np.count_nonzero(found != wanted))
    if wrong:
        raise ValueError(f"{what} came back with {wrong:,} of {wanted.nbytes:,} bytes wrong")
