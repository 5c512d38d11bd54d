"""Checks of the machine: Python, memory, disk, processor."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from strata_backends import sysfs
from strata_engine.doctor.check import FAIL, OK, WARN, Check
from strata_engine.units import format_bytes

_LEAST_PYTHON = (3, 10)
_LOW_MEMORY, _LOW_DISK, _NO_DISK = 10**9, 5 * 10**9, 300 * 10**6
_FAST_X86 = "avx2"


def check_python() -> Check:
    """The interpreter, and torch's version without importing it."""
    version = platform.python_version()
    if sys.version_info < _LEAST_PYTHON:
        return Check("python", FAIL, f"Python {version}", "Python 3.10 or newer")
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Check("python", FAIL, f"Python {version}, torch is not installed", "install llmrun again with pip")
    return Check("python", OK, f"Python {version}, torch {torch}")


def check_memory(total_bytes: int, free_bytes: int) -> Check:
    """Of the machine, or of this process's control group."""
    text = f"{format_bytes(free_bytes)} of {format_bytes(total_bytes)} free"
    if free_bytes < _LOW_MEMORY:
        return Check("memory", WARN, text, "close other programs, or use a small model (llmrun fit MODEL)")
    return Check("memory", OK, text)


def check_store(models: Path) -> list[Check]:
    """Free disk and rights where downloads go; nothing is made there."""
    there = nearest_existing(models)
    free = shutil.disk_usage(there).free
    text = f"{format_bytes(free)} free at {there}"
    remedy = "llmrun cache prune, llmrun rm MODEL, or LLMRUN_MODELS_DIR on another disk"
    disk = Check("disk", FAIL if free < _NO_DISK else WARN if free < _LOW_DISK else OK, text, remedy)
    return [disk if disk.status != OK else Check("disk", OK, text), _check_writable(models, there)]


def nearest_existing(path: Path) -> Path:
    """The path itself or its nearest parent that exists."""
    return next((p for p in (path, *path.parents) if p.exists()), Path(path.anchor))


def _check_writable(models: Path, there: Path) -> Check:
    remedy = "change its owner or rights, or set LLMRUN_HOME or LLMRUN_MODELS_DIR to a writable directory"
    if not there.is_dir():
        return Check("store", FAIL, f"{there} is not a directory", remedy)
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        return Check("store", FAIL, f"cannot write to {there}: {error.strerror}", remedy)
    return Check("store", OK, f"{models}" + ("" if there == models else " (not made yet)"))


def check_processor(seen: sysfs.CpuSeen) -> Check:
    """Instruction sets our kernels use."""
    text = (
        f"{seen.model}, {seen.usable_cores} of {seen.physical_cores} cores, {' '.join(seen.features) or 'no vectors'}"
    )
    if seen.arch.lower() in ("x86_64", "amd64") and seen.features and _FAST_X86 not in seen.features:
        return Check("processor", WARN, text, f"without {_FAST_X86} only the slow plain kernels run")
    return Check("processor", OK, text)
