"""Checks of the GPUs: one line a fault, with its remedy."""

from __future__ import annotations

from collections.abc import Sequence

from strata_backends.gpu import GpuSeen
from strata_engine.doctor.check import OK, WARN, Check


def check_graphics(seen: Sequence[GpuSeen], overrides: dict[str, str], runs_on_gpus: bool) -> list[Check]:
    """What the drivers show, and what the environment changes about it.

    No fault of a card is a failure: models run on the processor without it. `runs_on_gpus`: this version has operations
    for them.
    """
    if not seen:
        return [Check("graphics", OK, "no GPU seen; models run on the processor"), *_overrides(overrides)]
    checks = [check for gpu in seen for check in _card(gpu, runs_on_gpus)]
    said = " ".join(fault.text for gpu in seen for fault in gpu.faults)
    return [*checks, *_overrides({name: value for name, value in overrides.items() if name not in said})]


def _card(gpu: GpuSeen, runs_on_gpus: bool) -> list[Check]:
    parts = (gpu.label, gpu.vendor, gpu.name, gpu.arch and f"({gpu.arch})")
    name = " ".join(part for part in parts if part)
    if gpu.faults:
        return [Check("graphics", WARN, f"{name}: {fault.text}", fault.remedy) for fault in gpu.faults]
    return [Check("graphics", OK, name if runs_on_gpus else f"{name}; this version runs models on the processor")]


def _overrides(overrides: dict[str, str]) -> list[Check]:
    if not overrides:
        return []
    shown = ", ".join(f"{name}={value}" for name, value in overrides.items())
    return [Check("graphics", WARN, f"set in the environment: {shown}", "unset what is not meant")]
