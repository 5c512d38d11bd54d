"""NVIDIA cards: which are there by the driver's /proc files, what they are by nvidia-smi, else by the driver itself.

The tool is run only where its driver is loaded. Its query fields: `nvidia-smi --help-query-gpu`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from strata_backends.files import entries, link_of, text
from strata_backends.gpu import Architecture, Fault, GpuSeen, Place, numbered, rights_fault, with_faults

KIND = "cuda"
_QUERY = ("index", "name", "compute_cap", "memory.total", "memory.used", "driver_version", "pci.bus_id")
_COMMAND = ("nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits")
# cuDriverGetVersion: major * 1000 + minor * 10. Machine code of CUDA 12.8's assembler runs on every driver of CUDA 12.
ARCHITECTURES = {
    "sm_90": Architecture(
        ("mma f16", "mma i8", "mma fp8"), least_driver=12_000, least_text="a driver of CUDA 12 (525) or newer"
    )
}
_MARKS = ("proc/driver/nvidia/version", "usr/lib/wsl/lib/libcuda.so.1")


def find(place: Place) -> list[GpuSeen]:
    """Every card, numbered as CUDA numbers them when CUDA_DEVICE_ORDER is PCI_BUS_ID or all are of one model."""
    if not any((place.root / mark).exists() for mark in _MARKS):
        return []
    cards = list(_told(place))
    asked = [] if cards else list(_asked(place))  # already numbered, hidden ones left out
    cards = cards or list(_shown(place))
    mixed = len({card.name for card in cards}) > 1 and place.environment("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    found = asked or [_checked(card, place, mixed) for card in numbered(cards, ("CUDA_VISIBLE_DEVICES",), place)]
    return [with_faults(card, place, ARCHITECTURES) for card in found]


def _checked(card: GpuSeen, place: Place, mixed: bool) -> GpuSeen:
    if card.faults:
        return card
    nodes = [place.root / card.node.removeprefix("/")] if card.node else []
    faults = rights_fault(nodes, place, "video", "--gpus all")
    if mixed:
        text_of_fault = "the driver numbers cards of different models fastest first, this list by their place"
        faults = (*faults, Fault(text_of_fault, "export CUDA_DEVICE_ORDER=PCI_BUS_ID", blocks=False))
    return replace(card, faults=faults)


def _told(place: Place) -> Iterator[GpuSeen]:
    """By the vendor's tool, which lists by place on the bus."""
    minors = {bus: minor for bus, minor, _ in _kernel_list(place)}
    for line in place.run(_COMMAND).splitlines():
        values = dict(zip(_QUERY, (part.strip() for part in line.split(",")), strict=False))
        if len(values) < len(_QUERY):
            continue
        # The tool writes a domain of eight digits, the kernel one of four.
        bus = values["pci.bus_id"].lower()[-12:]
        yield GpuSeen(
            kind=KIND,
            vendor="NVIDIA",
            name=values["name"].removeprefix("NVIDIA "),
            arch=f"sm_{values['compute_cap'].replace('.', '')}" if _decimal(values["compute_cap"]) else "",
            total_bytes=_mebibytes(values["memory.total"]),
            used_bytes=_mebibytes(values["memory.used"]),
            link=link_of(place.root / "sys/bus/pci/devices" / bus),
            driver=f"nvidia {values['driver_version']}",
            node=f"/dev/nvidia{minors[bus]}" if bus in minors else "",
        )


def _asked(place: Place) -> Iterator[GpuSeen]:
    """By the driver's library, where the tool is not installed."""
    release = _release(place)
    for index, device in enumerate(place.driver(KIND).devices):
        yield GpuSeen(
            kind=KIND,
            vendor="NVIDIA",
            name=device.name.removeprefix("NVIDIA "),
            index=index,
            arch=f"sm_{device.capability.replace('.', '')}",
            total_bytes=device.total_bytes,
            driver=f"nvidia {release}".strip(),
        )


def _release(place: Place) -> str:
    found = re.search(r"Kernel Module[^0-9]*([0-9][0-9.]+)", text(place.root / "proc/driver/nvidia/version"))
    return found[1] if found else ""


def _shown(place: Place) -> Iterator[GpuSeen]:
    """By the kernel's driver alone: no architecture and no memory."""
    release = _release(place)
    for bus, minor, model in _kernel_list(place):
        yield GpuSeen(
            kind=KIND,
            vendor="NVIDIA",
            name=model.removeprefix("NVIDIA "),
            link=link_of(place.root / "sys/bus/pci/devices" / bus),
            driver=f"nvidia {release}".strip(),
            node=f"/dev/nvidia{minor}",
        )


def _kernel_list(place: Place) -> Iterator[tuple[str, str, str]]:
    """(place on the bus, number of the device node, model) of each card."""
    for folder in entries(place.root / "proc/driver/nvidia/gpus", "*"):
        lines = (line.partition(":") for line in text(folder / "information").splitlines())
        values = {name.strip(): value.strip() for name, _, value in lines}
        yield folder.name.lower(), values.get("Device Minor", "0"), values.get("Model", "GPU")


def _decimal(value: str) -> bool:
    return re.fullmatch(r"[0-9]+\.[0-9]", value) is not None


def _mebibytes(value: str) -> int | None:
    return int(value) * 2**20 if value.isdigit() else None
