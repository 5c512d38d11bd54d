"""Asking what is outside: a driver's library whether it works, a tool for its output, Python for the kernel compiler.

Only what finding a device needs: initialise, count, version. Memory and launches are strata_kernels' matter.
Function names: CUDA Driver API, HIP runtime API, MUSA driver API (the last by its likeness to the first; not seen run).
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TOOL_SECONDS = 10


@dataclass(frozen=True)
class Described:
    """A device in its driver's words. `capability`: "9.0"; `total_bytes` None where the driver does not tell."""

    name: str
    capability: str
    total_bytes: int | None


@dataclass(frozen=True)
class Answer:
    """What a driver's library says. `fault`: why it cannot be used, "" = it can. `version`: 0 = unknown."""

    fault: str = ""
    version: int = 0
    count: int = 0
    devices: tuple[Described, ...] = ()


@dataclass(frozen=True)
class _Names:
    libraries: tuple[str, ...]
    start: str
    count: str
    version: str


_NAMES = {
    "cuda": _Names(("libcuda.so.1", "libcuda.so"), "cuInit", "cuDeviceGetCount", "cuDriverGetVersion"),
    "hip": _Names(
        ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "/opt/rocm/lib/libamdhip64.so"),
        "hipInit", "hipGetDeviceCount", "hipRuntimeGetVersion",
    ),
    "musa": _Names(
        ("libmusa.so", "/usr/local/musa/lib/libmusa.so"), "muInit", "muDeviceGetCount", "muDriverGetVersion",
    ),
}  # fmt: skip


def ask_driver(kind: str, libraries: Sequence[str] = ()) -> Answer:
    """Load the library of a kind, initialise it and count its devices. `libraries`: in place of the usual ones."""
    names = _NAMES[kind]
    tried = tuple(libraries) or names.libraries
    library = _load(tried)
    if library is None:
        return Answer(f"the driver's library {Path(tried[0]).name} is not installed")
    try:
        start, count = getattr(library, names.start), getattr(library, names.count)
    except AttributeError as error:
        return Answer(f"{Path(tried[0]).name} is not the driver's library: {error}")
    number = ctypes.c_int(0)
    status = start(ctypes.c_uint(0))
    if status:
        return Answer(f"its driver does not start: {names.start} says {status}")
    version = getattr(library, names.version, None)
    found = 0 if version is None or version(ctypes.byref(number)) else number.value
    status = count(ctypes.byref(number))
    if status:
        return Answer(f"its driver does not answer: {names.count} says {status}", found)
    devices = () if kind == "hip" else tuple(_describe(library, kind, index) for index in range(number.value))
    return Answer(version=found, count=number.value, devices=tuple(d for d in devices if d is not None))


# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR; MUSA's likewise
_MAJOR, _MINOR = 75, 76


def _describe(library: ctypes.CDLL, kind: str, index: int) -> Described | None:
    """Name, capability and memory of one device; None when the driver does not answer. Needs no context."""
    prefix = {"cuda": "cu", "musa": "mu"}[kind]
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name, total = ctypes.create_string_buffer(256), ctypes.c_size_t()
    calls = [getattr(library, f"{prefix}Device{call}", None) for call in ("Get", "GetName", "GetAttribute")]
    get, named, attribute = calls
    if get is None or named is None or attribute is None:
        return None
    asked = (
        get(ctypes.byref(device), index)
        or named(name, len(name), device)
        or attribute(ctypes.byref(major), _MAJOR, device)
        or attribute(ctypes.byref(minor), _MINOR, device)
    )
    if asked:
        return None
    memory = getattr(library, f"{prefix}DeviceTotalMem_v2", None) or getattr(library, f"{prefix}DeviceTotalMem", None)
    told = memory is not None and not memory(ctypes.byref(total), device)
    text = name.value.decode("utf-8", errors="replace")
    return Described(text, f"{major.value}.{minor.value}", total.value if told else None)


def _load(names: Sequence[str]) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def run_tool(command: Sequence[str]) -> str:
    """What a tool prints, "" when it is not there, fails or takes longer than 10 s."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=TOOL_SECONDS, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", errors="replace") if done.returncode == 0 else ""


def compiler_fault(arch: str) -> str:
    """Why kernels for an architecture cannot be compiled here, "" = they can. Does not import the compiler."""
    from strata_kernels.gpu.compile import CompilerMissing, require_compiler
    from strata_kernels.gpu.targets import TARGETS

    try:
        require_compiler(TARGETS[arch])
    except CompilerMissing as error:
        return str(error)
    return ""
