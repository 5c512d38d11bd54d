"""The processor as the kernel shows it: files below /sys and /proc only.

Everything is read below `root`, so tests use a folder. What cannot be read is left empty, never guessed.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path

from strata_backends import machine
from strata_backends.files import entries, number, text

# Instruction sets that decide which of our kernels run.
FEATURES = ("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni",
            "avx512_bf16", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2")  # fmt: skip


@dataclass(frozen=True)
class CpuSeen:
    """The processor. `usable_cores`: physical ones this process may run on. `caches`: name -> bytes of one instance."""

    model: str
    arch: str
    physical_cores: int
    usable_cores: int
    logical_cores: int
    sockets: int = 1
    numa_nodes: int = 1
    features: tuple[str, ...] = ()
    caches: dict[str, int] = field(default_factory=dict)


def cpu(root: Path = Path("/")) -> CpuSeen:
    """The processor by /proc/cpuinfo and /sys/devices/system; by the platform's own words elsewhere."""
    info = _cpuinfo(root)
    logical = os.cpu_count() or 1
    cores = _cores(root)
    physical = len(set(cores.values())) or logical
    model = info.get("model name") or info.get("Hardware") or info.get("cpu model") or platform.processor()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return CpuSeen(
        model=model or platform.machine(),
        arch=platform.machine(),
        physical_cores=physical,
        usable_cores=machine.usable_cores(root / "sys/devices/system/cpu", root / "sys/fs/cgroup"),
        logical_cores=logical,
        sockets=len({package for package, _ in cores.values()}) or 1,
        numa_nodes=len(entries(root / "sys/devices/system/node", "node[0-9]*")) or 1,
        features=tuple(f for f in FEATURES if f in flags),
        caches=_caches(root),
    )


def _cpuinfo(root: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found


def _cores(root: Path) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for folder in entries(root / "sys/devices/system/cpu", "cpu[0-9]*"):
        core, package = number(folder / "topology/core_id"), number(folder / "topology/physical_package_id")
        if core is not None:
            found[int(folder.name[3:])] = (package or 0, core)
    return found


def _caches(root: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for folder in entries(root / "sys/devices/system/cpu/cpu0/cache", "index*"):
        size = re.fullmatch(r"([0-9]+)([KM]?)", text(folder / "size"))
        kind = {"Data": "d", "Instruction": "i"}.get(text(folder / "type"), "")
        if size:
            found[f"L{text(folder / 'level')}{kind}"] = int(size[1]) * {"": 1, "K": 1024, "M": 1024**2}[size[2]]
    return found
