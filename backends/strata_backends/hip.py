"""AMD cards by the kernel's own files: /sys/class/kfd (compute nodes), /sys/class/drm (memory, link).

Format of the files: https://docs.kernel.org/gpu/amdgpu/ and the KFD topology of the kernel's amdkfd driver.
HSA_OVERRIDE_GFX_VERSION changes what the runtime says of a card, never these files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from strata_backends.files import entries, link_of, number, pairs, text
from strata_backends.gpu import Architecture, Fault, GpuSeen, Place, numbered, rights_fault, with_faults

KIND = "hip"
# hipRuntimeGetVersion: major * 10^7 + minor * 10^5 + patch.
ARCHITECTURES = {
    "gfx1100": Architecture(
        features=("wave32", "wmma f16", "wmma i8"),
        known=(
            "capturing a graph is reported to hang on gfx1100 (sgl-project/sglang#30245): graphs are off",
            "its runtime reports version 11.0, which some programs take for an NVIDIA card; llmrun goes by the name",
        ),
        graphs=False,
        least_driver=6_00_00000,
        least_text="ROCm 6.0 or newer",
    ),
    "gfx1201": Architecture(
        features=("wave32", "wmma f16", "wmma i8", "wmma fp8"),
        least_driver=6_04_00000,
        least_text="ROCm 6.4 or newer",
    ),
}
# (device, revision) of PCI -> name, where libdrm's list is not installed. "" = any revision.
_NAMES = {
    (0x744C, "0xc8"): "Radeon RX 7900 XTX", (0x744C, "0xcc"): "Radeon RX 7900 XT", (0x7448, ""): "Radeon PRO W7900",
    (0x7550, "0xc0"): "Radeon RX 9070 XT", (0x7550, "0xc3"): "Radeon RX 9070", (0x7551, ""): "Radeon AI PRO R9700",
}  # fmt: skip
_LIST = "usr/share/libdrm/amdgpu.ids"
_HIDING = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def find(place: Place) -> list[GpuSeen]:
    """Every card that the kernel's driver offers for computing, in the runtime's order."""
    cards = numbered(list(_cards(place)), _HIDING, place)
    return [with_faults(card, place, ARCHITECTURES) for card in map(_Rights(place), cards)]


def arch_of(version: int) -> str:
    """gfx name of a gfx_target_version: 110000 -> gfx1100, 90010 -> gfx90a (the stepping is hexadecimal)."""
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def _cards(place: Place) -> Iterator[GpuSeen]:
    root = place.root
    for node in entries(root / "sys/class/kfd/kfd/topology/nodes", "[0-9]*"):
        values = pairs(node / "properties")
        if not values.get("simd_count"):
            continue  # a processor node
        render = f"renderD{values.get('drm_render_minor', 0)}"
        device = root / "sys/class/drm" / render / "device"
        yield GpuSeen(
            kind=KIND,
            vendor="AMD",
            name=_name(root, device, values.get("device_id", 0)),
            arch=arch_of(values.get("gfx_target_version", 0)),
            units=values["simd_count"] // (values.get("simd_per_cu") or 1),
            total_bytes=number(device / "mem_info_vram_total") or _bank_bytes(node),
            used_bytes=number(device / "mem_info_vram_used"),
            link=link_of(device),
            driver=f"amdgpu {text(root / 'sys/module/amdgpu/version')}".strip(),
            node=f"/dev/dri/{render}",
        )


def _name(root: Path, device: Path, number_of_device: int) -> str:
    """By the card itself, by libdrm's list, by our short one, else its number."""
    own = text(device / "product_name")
    if own:
        return own
    revision = text(device / "revision").lower()
    for line in text(root / _LIST).splitlines():
        parts = [part.strip() for part in line.split(",", 2)]
        if len(parts) == 3 and (parts[0].lower(), f"0x{parts[1].lower()}") == (f"{number_of_device:04x}", revision):
            return parts[2].removeprefix("AMD ")
    known = _NAMES.get((number_of_device, revision)) or _NAMES.get((number_of_device, ""))
    return known or f"GPU {number_of_device:04x}"


def _bank_bytes(node: Path) -> int | None:
    sizes = [pairs(bank / "properties") for bank in entries(node / "mem_banks", "[0-9]*")]
    local = sum(bank.get("size_in_bytes", 0) for bank in sizes if bank.get("heap_type") in (1, 2))
    return local or None


class _Rights:
    """Adds what keeps this process from a card: rights on its nodes, or a variable that makes the runtime lie."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def __call__(self, card: GpuSeen) -> GpuSeen:
        if card.faults:
            return card
        root = self._place.root
        nodes = (root / "dev/kfd", root / card.node.removeprefix("/"))
        faults = rights_fault(nodes, self._place, "render", "--device /dev/kfd --device /dev/dri")
        return replace(card, faults=(*faults, *_override_fault(card, self._place)))


def _override_fault(card: GpuSeen, place: Place) -> tuple[Fault, ...]:
    given = place.environment("HSA_OVERRIDE_GFX_VERSION")
    parts = given.split(".")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        return ()
    said = arch_of(int(parts[0]) * 10000 + int(parts[1]) * 100 + int(parts[2]))
    if said == card.arch or card.arch not in ARCHITECTURES:
        return ()
    text_of_fault = f"HSA_OVERRIDE_GFX_VERSION={given} makes the runtime take this {card.arch} for a {said}"
    return (Fault(text_of_fault, "unset HSA_OVERRIDE_GFX_VERSION"),)
