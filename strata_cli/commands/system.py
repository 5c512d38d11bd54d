"""version, hw and doctor."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from typing import Annotated, Any

import typer

from strata_backends import sysfs
from strata_backends.machine import memory_bytes
from strata_backends.probe import gpus, overrides
from strata_cli import __version__, doctor_checks
from strata_cli.app import App
from strata_cli.devices import gpu_data, gpu_rows, place_of
from strata_engine.doctor.check import exit_code
from strata_engine.units import format_bytes

_LIBRARIES = ("torch", "numpy", "typer", "huggingface_hub", "tokenizers", "gguf", "starlette")


def version(context: typer.Context) -> None:
    """Show versions of the program and of what it stands on."""
    app = App.of(context)
    from strata_engine.bench.host import commit
    from strata_engine.doctor.kernels import state

    kernels = state()
    data: dict[str, Any] = {
        "program": __version__,
        "commit": commit() or None,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "executable": sys.executable,
        "libraries": {name: _library(name) for name in _LIBRARIES},
        "kernels": {
            "library": str(kernels.library) if kernels.library else None,
            "abi": kernels.abi,
            "build": kernels.build or None,
        },
    }
    if app.output.json_mode:
        app.output.data("llmrun.version.v1", data)
        return
    commit_text = f" ({data['commit'][:12]})" if data["commit"] else ""
    app.output.line(f"llmrun {__version__}{commit_text}")
    app.output.line(f"Python {data['python']}, torch {data['libraries']['torch']}, {data['platform']}")
    app.output.line(f"CPU kernels: {kernels.text}")


def _library(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def hw(
    context: typer.Context,
    measure: Annotated[bool, typer.Option("--measure", help="Measure the memory bandwidth (about a second)")] = False,
) -> None:
    """Show the hardware: processor, memory, and the GPUs that the kernel's drivers see."""
    app = App.of(context)
    total_bytes, free_bytes = memory_bytes()
    place = place_of(app)
    cpu, seen = sysfs.cpu(), gpus(place)
    data: dict[str, Any] = {
        "cpu": vars(cpu),
        "memory": {"total_bytes": total_bytes, "free_bytes": free_bytes},
        "gpus": [gpu_data(gpu) for gpu in seen],
        "overrides": overrides(place),
    }
    if measure:
        from strata_engine.bench.host import read_bandwidth_gb_s

        app.output.note("measuring the memory bandwidth ...")
        data["memory"]["read_gb_s"] = round(read_bandwidth_gb_s(cpu.usable_cores), 1)
    if app.output.json_mode:
        app.output.data("llmrun.hw.v1", data)
        return
    shown = gpu_rows(seen, place.make_ops is not None)
    app.output.table((), [*_cpu_rows(cpu), *_memory_rows(data["memory"]), *shown, *_override_rows(data)])


def _cpu_rows(cpu: sysfs.CpuSeen) -> list[list[str]]:
    cores = f"{cpu.physical_cores} cores, {cpu.logical_cores} threads, {cpu.usable_cores} cores usable"
    places = f"{cpu.sockets} socket{'s' * (cpu.sockets > 1)}, {cpu.numa_nodes} NUMA node{'s' * (cpu.numa_nodes > 1)}"
    rows = [["processor", f"{cpu.model} ({cpu.arch})"], ["", f"{cores}, {places}"]]
    if cpu.features:
        rows.append(["features", " ".join(cpu.features)])
    if cpu.caches:
        rows.append(["caches", ", ".join(f"{name} {size // 1024} KiB" for name, size in cpu.caches.items())])
    return rows


def _memory_rows(memory: dict[str, Any]) -> list[list[str]]:
    rows = [["memory", f"{format_bytes(memory['total_bytes'])}, {format_bytes(memory['free_bytes'])} free"]]
    if "read_gb_s" in memory:
        rows.append(["bandwidth", f"{memory['read_gb_s']} GB/s read, all usable cores"])
    return rows


def _override_rows(data: dict[str, Any]) -> list[list[str]]:
    return [["override", f"{name}={value}"] for name, value in data["overrides"].items()]


def doctor(context: typer.Context) -> int:
    """Check this machine and this installation.

    Ends with 0 when nothing failed, 8 when the device failed, 10 when something else did. Warnings do not count.
    """
    app = App.of(context)
    checks = doctor_checks.run_all(app)
    code = exit_code(checks)
    if app.output.json_mode:
        app.output.data("llmrun.doctor.v1", {"exit_code": code, "checks": [vars(c) for c in checks]})
        return code
    for text in doctor_checks.lines(checks):
        app.output.line(text)
    return code
