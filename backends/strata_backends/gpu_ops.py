"""Operations on a GPU, put together: its driver, the store of compiled kernels, the compiler where one is needed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from strata_backends.base import Choice, ChosenOps, Profile
from strata_backends.gpu import GpuSeen, MakeOps
from strata_kernels.gpu.bundle import Store
from strata_kernels.gpu.bundled import BundleLauncher
from strata_kernels.gpu.compile import Outcome, ensure_kernels
from strata_kernels.gpu.driver import Driver, DriverAllocator, open_driver
from strata_kernels.gpu.launch import Variant
from strata_kernels.gpu.ops import GpuOps

Told = Callable[[int, int], None]  # kernels done, kernels in all


def gpu_ops(root: Path, told: Told | None = None, library: Path | None = None) -> MakeOps:
    """A maker of operations for any card. `root`: of compiled kernels. `library`: in place of the system's driver."""
    return partial(_make, root, told, library)


def _make(root: Path, told: Told | None, library: Path | None, seen: GpuSeen, profile: Profile) -> ChosenOps:
    """Raises RuntimeError (no driver, kernels for another card), ValueError for other kernels than "auto"."""
    if profile.kernels != "auto":
        raise ValueError(f"kernels {profile.kernels!r} run on the processor: use --device cpu with them")
    driver = open_driver(seen.kind, seen.index or 0, library, seen.graphs)
    ops = GpuOps(
        BundleLauncher(driver, Store(root, driver.arch)),
        DriverAllocator(driver),
        partial(build_missing, driver.arch, root, told),
    )
    return ChosenOps(ops, (_kernels(driver), _graphs(driver, seen), _mode(profile)))


def build_missing(arch: str, root: Path, told: Told | None, variants: Collection[Variant]) -> str:
    """Compile what is not there yet; in words what was done. Raises RuntimeError with a hint."""

    def progress(_one: Outcome, done: int, total: int) -> None:
        if told is not None:
            told(done, total)

    built = [one for one in ensure_kernels(variants, arch, root, progress) if one.state == "built"]
    if not built:
        return "all compiled before"
    return f"{len(built)} compiled now, in {sum(one.seconds for one in built):.0f} s of processor time"


def _kernels(driver: Driver) -> Choice:
    return Choice("kernels", "triton", f"compiled ahead of time for {driver.arch}, launched through its driver")


def _graphs(driver: Driver, seen: GpuSeen) -> Choice:
    if driver.graphs:
        return Choice("graphs", "on", "a step of a known shape is one call")
    why = "they are known to fail on this card" if not seen.graphs else driver.graphs_refused or "the driver has none"
    return Choice("graphs", "off", f"{why}; kernels are launched one by one")


def _mode(profile: Profile) -> Choice:
    rejected = (("fast", "a GPU has no faster variant"),) if profile.mode == "fast" else ()
    why = "the same bits for a row whatever it is batched with, up to 16 rows; matrix units for prompts"
    return Choice("mode", "exact", why, rejected)
