"""Cards on the PCI bus that no driver offers for computing: the reason is said, so that nobody wonders where one is."""

from __future__ import annotations

from collections.abc import Iterator

from strata_backends.files import entries, link_of, text
from strata_backends.gpu import Fault, GpuSeen, Place

_VENDORS = {"0x1002": "AMD", "0x10de": "NVIDIA", "0x1ed5": "Moore Threads", "0x8086": "Intel"}
_NO_DRIVER = Fault("no kernel driver is bound to it", "install its driver")
# A driver is bound, yet it offers nothing to compute with. An Intel display alone is no reason to say a word.
_IDLE = {
    "AMD": Fault("its driver shows no compute node (/sys/class/kfd)", "install a newer kernel or the amdgpu driver"),
    "NVIDIA": Fault("its driver is not the one for computing", "install the vendor's driver in its place"),
    "Moore Threads": Fault("its driver shows no device node (/dev/mtgpu.*)", "install the vendor's driver"),
}


def find(place: Place, shown: set[str]) -> Iterator[GpuSeen]:
    """Display controllers and accelerators of known vendors without a use; `shown`: vendors with a working card."""
    for device in entries(place.root / "sys/bus/pci/devices", "*"):
        vendor = _VENDORS.get(text(device / "vendor"))
        # 0x03: display controllers; 0x12: processing accelerators.
        if vendor is None or text(device / "class")[:4] not in ("0x03", "0x12"):
            continue
        driver = (device / "driver").resolve().name if (device / "driver").exists() else ""
        fault = _NO_DRIVER if not driver else None if vendor in shown else _IDLE.get(vendor)
        if fault:
            name = f"GPU {text(device / 'device')[2:]}"
            yield GpuSeen(
                "", vendor, name, None, link=link_of(device), driver=driver, node=device.name, faults=(fault,)
            )
