"""What a launch costs the host, without a device: JSON lines of microseconds through the stand-in driver library.

`python benches/launch.py [--launches 400] [--seconds 0.5]`: packing a launch, launching it, an operation outside a
step, a step of many launches as a list and as a graph. The stand-in's own part (a call, and for a graph one for each
launch) is in all lines; a real driver's is not. Fastest of many repetitions. Needs a C compiler.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "backends"), str(ROOT / "kernels")]

from benches.common import emit  # noqa: E402
from strata_kernels.gpu.bundled import BundleLauncher  # noqa: E402
from strata_kernels.gpu.driver import DriverAllocator  # noqa: E402
from strata_kernels.gpu.driver_tables import TABLES  # noqa: E402
from strata_kernels.gpu.launch import make_launch  # noqa: E402
from strata_kernels.gpu.ops import GpuOps  # noqa: E402
from strata_kernels.ops import Step  # noqa: E402
from tests.support.standin.kernels import StandInStore, open_standin  # noqa: E402
from tests.support.standin.library import StandIn, build  # noqa: E402


def best_us(work: Callable[[], object], seconds: float, times: int = 1) -> float:
    """Fastest of many runs of `work`, in microseconds for each of the `times` things it does."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 5:
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found) * 1e6 / times


def record(ops: GpuOps, launches: int) -> Step:
    """A step of so many additions."""
    a, b, out = ops.zeros(64), ops.zeros(64), ops.zeros(64)
    ops.begin()
    for _ in range(launches):
        ops.add(a, b, out)
    return ops.end()


def measure(kind: str, launches: int, seconds: float, folder: Path) -> None:
    """All lines of one driver."""
    standin = StandIn(build(folder), folder)
    driver = open_standin(standin, kind)
    ops = GpuOps(BundleLauncher(driver, StandInStore(standin, folder / "store", driver.arch)), DriverAllocator(driver))
    a, out = ops.zeros(64), ops.zeros(64)
    launch = make_launch("add", (1,), [a, a, out, 64], {"BLOCK": 1024})
    packed = ops.launcher.pack(launch)
    graph = record(ops, launches)
    driver.graphs = False
    one_by_one = record(ops, launches)
    standin.quiet()
    works = {
        "pack a launch": (lambda: ops.launcher.pack(launch), 1),
        "launch": (packed.run, 1),
        "operation outside a step": (lambda: ops.add(a, a, out), 1),
        "step as a list": (one_by_one.run, 1),
        "step as a list, a launch": (one_by_one.run, launches),
        "step as a graph": (graph.run, 1),
    }
    for what, (work, times) in works.items():
        emit(what=what, driver=kind, launches=launches, us=round(best_us(work, seconds, times), 3))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=400, help="of a step")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each line")
    args = parser.parse_args()
    for kind in TABLES:
        with tempfile.TemporaryDirectory() as folder:
            measure(kind, args.launches, args.seconds, Path(folder))


if __name__ == "__main__":
    main()
