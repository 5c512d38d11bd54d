"""Hardware as the kernel's drivers show it: files below /sys, /proc and /dev only, no vendor library and no torch.

Everything is read below `root`, so tests use a folder. What cannot be read is left empty, never guessed.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from strata_backends import machine

# Instruction sets that decide which of our kernels run.
FEATURES = ("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni",
            "avx512_bf16", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2")  # fmt: skip
OVERRIDES = ("HSA_OVERRIDE_GFX_VERSION", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
             "MUSA_VISIBLE_DEVICES")  # fmt: skip
# A driver is bound, yet it offers nothing to compute with. An Intel display alone is no reason to say a word.
_IDLE = {
    "AMD": "its driver shows no compute node (/sys/class/kfd): a newer kernel or the amdgpu driver is needed",
    "NVIDIA": "its driver is not the one for computing: install the vendor's",
    "Moore Threads": "its driver shows no device node (/dev/mtgpu.*)",
}
_NO_DRIVER = "no kernel driver is bound to it"
_VENDORS = {"0x1002": "AMD", "0x10de": "NVIDIA", "0x1ed5": "Moore Threads", "0x8086": "Intel"}


@dataclass(frozen=True)
class GpuSeen:
    """One GPU. Bytes are None where no file tells. `problems`: why it could not be used now (driver, rights)."""

    vendor: str
    name: str
    arch: str = ""
    units: int = 0
    total_bytes: int | None = None
    used_bytes: int | None = None
    link: str = ""
    driver: str = ""
    node: str = ""
    problems: tuple[str, ...] = ()


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


def overrides(get: Callable[[str], str]) -> dict[str, str]:
    """Variables that change what a driver reports or shows; `get` reads one variable."""
    return {name: value for name in OVERRIDES if (value := get(name))}


# ---- files


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if re.fullmatch(r"[0-9]{1,19}", text) else None


def _pairs(path: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if re.fullmatch(r"[0-9]{1,20}", value.strip()):
            found[name] = int(value)
    return found


def _entries(folder: Path, pattern: str) -> list[Path]:
    try:
        found = list(folder.glob(pattern))
    except OSError:
        return []
    return sorted(found, key=lambda p: (len(p.name), p.name))


# ---- processor


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
        numa_nodes=len(_entries(root / "sys/devices/system/node", "node[0-9]*")) or 1,
        features=tuple(f for f in FEATURES if f in flags),
        caches=_caches(root),
    )


def _cpuinfo(root: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in _text(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found


def _cores(root: Path) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for folder in _entries(root / "sys/devices/system/cpu", "cpu[0-9]*"):
        core, package = _number(folder / "topology/core_id"), _number(folder / "topology/physical_package_id")
        if core is not None:
            found[int(folder.name[3:])] = (package or 0, core)
    return found


def _caches(root: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for folder in _entries(root / "sys/devices/system/cpu/cpu0/cache", "index*"):
        size = re.fullmatch(r"([0-9]+)([KM]?)", _text(folder / "size"))
        kind = {"Data": "d", "Instruction": "i"}.get(_text(folder / "type"), "")
        if size:
            found[f"L{_text(folder / 'level')}{kind}"] = int(size[1]) * {"": 1, "K": 1024, "M": 1024**2}[size[2]]
    return found


# ---- graphics


def gpus(root: Path = Path("/"), may_open: Callable[[Path], bool] | None = None) -> list[GpuSeen]:
    """Every GPU that a driver shows, then those on the bus that no driver took. `may_open`: rights on a device node."""
    can = may_open or (lambda path: os.access(path, os.R_OK | os.W_OK))
    found = [*_kfd(root, can), *_nvidia(root, can), *_mthreads(root, can)]
    return [*found, *_idle(root, {gpu.vendor for gpu in found})]


def arch_of(version: int) -> str:
    """gfx name of a gfx_target_version: 110000 -> gfx1100, 90010 -> gfx90a (the stepping is hexadecimal)."""
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def _kfd(root: Path, can: Callable[[Path], bool]) -> Iterator[GpuSeen]:
    for node in _entries(root / "sys/class/kfd/kfd/topology/nodes", "[0-9]*"):
        values = _pairs(node / "properties")
        if not values.get("simd_count"):
            continue  # a processor node
        render = f"renderD{values.get('drm_render_minor', 0)}"
        device = root / "sys/class/drm" / render / "device"
        nodes = (root / "dev/kfd", root / "dev/dri" / render)
        denied = tuple(f"no rights on /{n.relative_to(root)}: join group render" for n in nodes if not can(n))
        yield GpuSeen(
            vendor="AMD",
            name=_text(device / "product_name") or f"GPU {values.get('device_id', 0):04x}",
            arch=arch_of(values.get("gfx_target_version", 0)),
            units=values["simd_count"] // (values.get("simd_per_cu") or 1),
            total_bytes=_number(device / "mem_info_vram_total") or _bank_bytes(node),
            used_bytes=_number(device / "mem_info_vram_used"),
            link=_link(device),
            driver=f"amdgpu {_text(root / 'sys/module/amdgpu/version')}".strip(),
            node=f"/dev/dri/{render}",
            problems=denied,
        )


def _bank_bytes(node: Path) -> int | None:
    sizes = [_pairs(bank / "properties") for bank in _entries(node / "mem_banks", "[0-9]*")]
    local = sum(bank.get("size_in_bytes", 0) for bank in sizes if bank.get("heap_type") in (1, 2))
    return local or None


def _link(device: Path) -> str:
    speed, width = _text(device / "current_link_speed"), _text(device / "current_link_width")
    return f"{speed} x{width}" if speed and width else ""


def _nvidia(root: Path, can: Callable[[Path], bool]) -> Iterator[GpuSeen]:
    release = re.search(r"Kernel Module[^0-9]*([0-9][0-9.]+)", _text(root / "proc/driver/nvidia/version"))
    for folder in _entries(root / "proc/driver/nvidia/gpus", "*"):
        lines = (line.partition(":") for line in _text(folder / "information").splitlines())
        values = {name.strip(): value.strip() for name, _, value in lines}
        node = root / f"dev/nvidia{values.get('Device Minor', '0')}"
        yield GpuSeen(
            vendor="NVIDIA",
            name=values.get("Model", "GPU"),
            link=_link(root / "sys/bus/pci/devices" / values.get("Bus Location", folder.name).lower()),
            driver=f"nvidia {release[1] if release else ''}".strip(),
            node=f"/{node.relative_to(root)}",
            problems=() if can(node) else (f"no rights on /{node.relative_to(root)}",),
        )


def _mthreads(root: Path, can: Callable[[Path], bool]) -> Iterator[GpuSeen]:
    packages = _text(root / "var/lib/dpkg/status")
    stanzas = [s for s in packages.split("\n\n") if re.match(r"Package: (musa|mtgpu)", s)]
    versions = [m[1] for s in stanzas if (m := re.search(r"^Version: (\S+)", s, re.MULTILINE))]
    box = any(v.endswith("-M1000") for v in versions)
    for node in _entries(root / "dev", "mtgpu.[0-9]*"):
        yield GpuSeen(
            vendor="Moore Threads",
            name="M1000" if box else "GPU",
            arch="mp_22" if box else "",
            driver=f"mtgpu {versions[0] if versions else ''}".strip(),
            node=f"/dev/{node.name}",
            problems=() if can(node) else (f"no rights on /dev/{node.name}",),
        )


def _idle(root: Path, shown: set[str]) -> Iterator[GpuSeen]:
    for device in _entries(root / "sys/bus/pci/devices", "*"):
        vendor = _VENDORS.get(_text(device / "vendor"))
        # 0x03: display controllers; 0x12: processing accelerators.
        if vendor is None or _text(device / "class")[:4] not in ("0x03", "0x12"):
            continue
        driver = (device / "driver").resolve().name if (device / "driver").exists() else ""
        problem = _NO_DRIVER if not driver else "" if vendor in shown else _IDLE.get(vendor, "")
        if problem:
            name = f"GPU {_text(device / 'device')[2:]}"
            yield GpuSeen(vendor, name, link=_link(device), driver=driver, node=device.name, problems=(problem,))
