"""GPUs for the commands: where to look, with the environment's values, and how a card is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata_engine.units import format_bytes

if TYPE_CHECKING:
    from strata_backends.base import ChosenOps, Profile
    from strata_backends.gpu import GpuSeen, Place
    from strata_cli.app import App

LINE_EVERY_S = 3.0


def place_of(app: App) -> Place:
    """This machine, by this run's environment and cache."""
    from strata_backends.gpu import Place

    kernels = app.paths.kernels

    def make(seen: GpuSeen, profile: Profile) -> ChosenOps:
        from strata_backends.gpu_ops import gpu_ops  # numpy comes with it

        return gpu_ops(kernels, _teller(app))(seen, profile)

    return Place(environment=app.env.get, built=lambda arch: kernels_built(kernels, arch), make_ops=make)


def _teller(app: App) -> Callable[[int, int], None]:
    """Tells of kernels that are compiled before a model is ready: a line now and then."""
    told = [time.monotonic()]

    def tell(done: int, total: int) -> None:
        if time.monotonic() - told[0] >= LINE_EVERY_S:
            told[0] = time.monotonic()
            app.output.note(f"compiling kernels for this card, once: {done} of {total}")

    return tell


def kernels_built(bundles: Path, arch: str) -> bool:
    """Is there a bundle for this architecture?"""
    return any((bundles / arch).glob("*.kernel"))


def gpu_data(seen: GpuSeen) -> dict[str, Any]:
    """A card as JSON data."""
    return {**asdict(seen), "device": seen.label if seen.kind else None, "usable": seen.blocking is None}


def gpu_rows(seen: Sequence[GpuSeen], runs_on_gpus: bool) -> list[list[str]]:
    """Lines of `hw`: a card with its facts, then each fault with its remedy, then what is known of such cards."""
    if not seen:
        return [["graphics", "no GPU seen by a kernel driver"]]
    rows: list[list[str]] = []
    for gpu in seen:
        facts = [gpu.arch, f"{gpu.units} units" if gpu.units else "", _memory(gpu), gpu.link, gpu.driver, gpu.node]
        name = f"{gpu.label}  {gpu.vendor} {gpu.name}" if gpu.kind else f"{gpu.vendor} {gpu.name}"
        rows.append(["graphics", f"{name}: " + ", ".join(fact for fact in facts if fact)])
        rows += [["", f"{fault.text}; try: {fault.remedy}"] for fault in gpu.faults]
        rows += [["", f"known: {text}"] for text in gpu.known]
    return rows if runs_on_gpus else [*rows, ["", "this version runs models on the processor"]]


def _memory(gpu: GpuSeen) -> str:
    if gpu.total_bytes is None:
        return ""
    used = f" ({format_bytes(gpu.used_bytes)} used)" if gpu.used_bytes is not None else ""
    return format_bytes(gpu.total_bytes) + used
