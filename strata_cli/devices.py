"""GPUs for the commands: where to look, with the environment's values, and how a card is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata_engine.units import format_bytes

if TYPE_CHECKING:
    from strata_backends.gpu import GpuSeen, Place
    from strata_cli.app import App


def place_of(app: App) -> Place:
    """This machine, by this run's environment and cache."""
    from strata_backends.gpu import Place

    return Place(environment=app.env.get, built=lambda arch: kernels_built(app.paths.kernels, arch))


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
