"""Moore Threads: device nodes /dev/mtgpu.N, the vendor's tools, and the packages of the M1000's own image.

The M1000 is a system on a chip: processor and GPU share one memory, and there is no PCI device to look for.
Marks by ../shared/notes/gpu_kernels.md, read from public sources; seen on no machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from strata_backends.files import entries, text
from strata_backends.gpu import Architecture, GpuSeen, Place, numbered, rights_fault, with_faults
from strata_backends.machine import memory_bytes

KIND = "musa"
ARCHITECTURES = {"mp_22": Architecture(features=("128-thread warps", "unified memory"))}
# The tool is not on every PATH.
_TOOLS = (("musaInfo",), ("/usr/local/musa/bin/musaInfo",))


def find(place: Place) -> list[GpuSeen]:
    """Every device node, with what tools and packages tell of it."""
    nodes = entries(place.root / "dev", "mtgpu.[0-9]*")
    if not nodes:
        return []
    cards = [
        replace(card, node=f"/dev/{node.name}") for node, card in zip(nodes, _cards(place, len(nodes)), strict=True)
    ]
    found = []
    for card in numbered(cards, ("MUSA_VISIBLE_DEVICES",), place):
        faults = card.faults or rights_fault([place.root / card.node[1:]], place, "render", f"--device {card.node}")
        found.append(with_faults(replace(card, faults=faults), place, ARCHITECTURES))
    return found


def _cards(place: Place, count: int) -> Iterator[GpuSeen]:
    versions = _packages(place)
    box = any(version.endswith("-M1000") for version in versions)
    told = [*(_musa_info(place) or _asked(place)), *[{}] * count][:count]
    for values in told:
        capability = re.fullmatch(r"([0-9])\.([0-9])", values.get("compute capability", ""))
        name = values.get("name") or _listed_name(place) or ("M1000" if box else "GPU")
        card = GpuSeen(
            kind=KIND,
            vendor="Moore Threads",
            name=name.removeprefix("Moore Threads "),
            arch=f"mp_{capability[1]}{capability[2]}" if capability else "mp_22" if box else "",
            driver=f"mtgpu {versions[0] if versions else ''}".strip(),
        )
        yield _with_memory(card, place) if box or "M1000" in name else card


def _with_memory(card: GpuSeen, place: Place) -> GpuSeen:
    total, free = memory_bytes(place.root / "sys/fs/cgroup", place.root / "proc/meminfo")
    return replace(card, total_bytes=total, used_bytes=total - free)


def _packages(place: Place) -> list[str]:
    """Versions of the vendor's packages by dpkg's own file."""
    stanzas = text(place.root / "var/lib/dpkg/status").split("\n\n")
    own = [stanza for stanza in stanzas if re.match(r"Package: (musa|mtgpu)", stanza)]
    return [found[1] for stanza in own if (found := re.search(r"^Version: (\S+)", stanza, re.MULTILINE))]


def _musa_info(place: Place) -> list[dict[str, str]]:
    """Lines `key: value` of musaInfo, one set a device; a device begins with the line that holds its number."""
    printed = next((out for command in _TOOLS if (out := place.run(command))), "")
    devices: list[dict[str, str]] = []
    for line in printed.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if re.match(r"(device|dev)\s*#?\s*[0-9]*$", key, re.IGNORECASE):
            devices.append({})
        elif devices and value:
            devices[-1].setdefault(key.lower(), value)
    return devices


def _asked(place: Place) -> list[dict[str, str]]:
    """The same by the driver's library."""
    devices = place.driver(KIND).devices
    return [{"name": device.name, "compute capability": device.capability} for device in devices]


def _listed_name(place: Place) -> str:
    found = re.search(r"Product Name\s*:\s*(\S.*)", place.run(("mthreads-gmi", "-q")))
    return found[1].strip() if found else ""
