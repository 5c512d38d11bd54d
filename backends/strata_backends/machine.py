"""What this process may use of the machine: physical cores and memory, within affinity and cgroup limits (Linux).

Every figure falls back to what Python or the kernel says when a file is missing; nothing here raises.
"""

from __future__ import annotations

import os
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def allowed_cpus() -> list[int]:
    """Logical CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def quota_cpus(cgroup: Path = _CGROUP) -> float | None:
    """CPUs' worth of time the control group grants, None when unlimited. Reads version 2, then version 1 files."""
    parts = _read(cgroup / "cpu.max").split()
    if len(parts) != 2:
        parts = [_read(cgroup / "cpu" / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    try:
        quota, period = int(parts[0]), int(parts[1])
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def usable_cores(cpus: Path = _CPUS, cgroup: Path = _CGROUP) -> int:
    """Physical cores this process may keep busy: at least 1.

    Hyper-threads of one core count once (two threads on one core's vector units are no faster than one); a control
    group's time quota rounds up.
    """
    cores = set()
    for cpu in allowed_cpus():
        topology = cpus / f"cpu{cpu}" / "topology"
        siblings = _read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list")
        cores.add(siblings or f"cpu{cpu}")
    count = max(1, len(cores))
    quota = quota_cpus(cgroup)
    return count if quota is None else max(1, min(count, -(-int(quota * 1000) // 1000)))


def memory_bytes(cgroup: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo")) -> tuple[int, int]:
    """Total and free bytes of memory this process can count on: the machine's, or the control group's if less."""
    lines = [line.split() for line in _read(meminfo).splitlines()]
    figures = {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines if len(line) >= 2 and line[1].isdigit()}
    if "MemTotal" in figures:
        total, free = figures["MemTotal"], figures.get("MemAvailable", figures.get("MemFree", 0))
    else:
        import psutil

        machine = psutil.virtual_memory()
        total, free = machine.total, machine.available
    limit, used = _read(cgroup / "memory.max"), _read(cgroup / "memory.current")
    if limit.isdigit():
        total = min(total, int(limit))
        # Cached file pages (a model just downloaded or mapped) count as used, but are given back on demand.
        free = max(0, min(free, int(limit) - int(used or 0) + _cached_bytes(cgroup / "memory.stat")))
    return total, free


def _cached_bytes(stat: Path) -> int:
    lines = (line.split() for line in _read(stat).splitlines())
    return sum(int(line[1]) for line in lines if len(line) == 2 and line[0] in ("inactive_file", "active_file"))


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name as the kernel tells it, else the platform's."""
    for line in _read(cpuinfo).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    import platform

    return platform.processor() or platform.machine()
