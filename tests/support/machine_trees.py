"""Made-up machines: the files that kernels' drivers show, what the vendors' tools print, what their libraries answer.

Files of the AMD cards follow the kernel's formats; figures are those of the named cards. No file was copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strata_backends.gpu import Place
from strata_backends.library import Answer

ROCM_6_4, ROCM_5_7, CUDA_12_8, MUSA = 6_04_43482, 5_07_31921, 12_080, 50_100
_MISSING = {
    "hip": Answer("the driver's library libamdhip64.so is not installed"),
    "cuda": Answer("the driver's library libcuda.so.1 is not installed"),
    "musa": Answer("the driver's library libmusa.so is not installed"),
}


@dataclass
class Machine:
    """Files below a root, tools by their name, answers of driver libraries by kind."""

    files: dict[str, str] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    drivers: dict[str, Answer] = field(default_factory=dict)
    denied: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    built: tuple[str, ...] = ()
    compiler: str = ""

    def place(self, root: Path) -> Place:
        """The machine, written below `root`."""
        for name, text in self.files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return Place(
            root=root,
            environment=lambda name: self.variables.get(name, ""),
            may_open=lambda path: path.relative_to(root).as_posix() not in self.denied,
            run=self._run,
            driver=lambda kind: self.drivers.get(kind, _MISSING[kind]),
            built=lambda arch: arch in self.built,
            compiler=lambda arch: self.compiler,
        )

    def _run(self, command: Sequence[str]) -> str:
        return self.tools.get(command[0], "")


@dataclass(frozen=True)
class Radeon:
    """An AMD card. `revision` as in its PCI file."""

    version: int
    device_id: int
    revision: str
    units: int
    vram: int


RX_7900_XTX = Radeon(110000, 0x744C, "0xc8", 96, 25753026560)
W7900 = Radeon(110000, 0x7448, "0x00", 96, 48301604864)
RX_9070_XT = Radeon(120001, 0x7550, "0xc0", 64, 17095983104)
R9700 = Radeon(120001, 0x7551, "0xc0", 64, 34208743424)
VEGA_20 = Radeon(90006, 0x66AF, "0xc1", 60, 17163091968)  # gfx906: no kernels of ours


def amd(*cards: Radeon, driver: int = ROCM_6_4) -> Machine:
    """A machine with these cards, the first at render node 128."""
    files = {
        "sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 16\nsimd_count 0\n",
        "sys/module/amdgpu/version": "6.10.5\n",
        "dev/kfd": "",
    }
    for index, card in enumerate(cards):
        minor = 128 + index
        device = f"sys/class/drm/renderD{minor}/device"
        values = {"simd_count": 2 * card.units, "simd_per_cu": 2, "gfx_target_version": card.version,
                  "vendor_id": 4098, "device_id": card.device_id, "drm_render_minor": minor}  # fmt: skip
        text = "".join(f"{name} {value}\n" for name, value in values.items())
        files |= {
            f"sys/class/kfd/kfd/topology/nodes/{index + 1}/properties": text,
            f"{device}/mem_info_vram_total": f"{card.vram}\n",
            f"{device}/mem_info_vram_used": "27979776\n",
            f"{device}/revision": f"{card.revision}\n",
            f"{device}/current_link_speed": "16.0 GT/s PCIe\n",
            f"{device}/current_link_width": "16\n",
            f"dev/dri/renderD{minor}": "",
        }
    return Machine(files, drivers={"hip": Answer(version=driver, count=len(cards))})


def nvidia(*cards: tuple[str, str, int], driver: int = CUDA_12_8) -> Machine:
    """A machine with these cards: name, compute capability, MiB of memory."""
    release = "570.86.10"
    files = {
        "proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {release}  Thu\nGCC version:\n"
    }
    lines = []
    for index, (name, capability, mebibytes) in enumerate(cards):
        bus = f"0000:{index + 1:02x}:00.0"
        files |= {
            f"proc/driver/nvidia/gpus/{bus}/information": (
                f"Model: \t\t {name}\nBus Location: \t {bus}\nDevice Minor: \t {index}\n"
            ),
            f"sys/bus/pci/devices/{bus}/current_link_speed": "32.0 GT/s PCIe\n",
            f"sys/bus/pci/devices/{bus}/current_link_width": "16\n",
            f"dev/nvidia{index}": "",
        }
        lines.append(f"{index}, {name}, {capability}, {mebibytes}, 5, {release}, 0000{bus.upper()}")
    tools = {"nvidia-smi": "\n".join(lines) + "\n"}
    return Machine(files, tools, {"cuda": Answer(version=driver, count=len(cards))})


def m1000() -> Machine:
    """The 64 GB module with the vendor's image."""
    packages = (
        "Package: libc6\nVersion: 2.35\n\nPackage: musa\nVersion: 5.1.1-M1000\nStatus: ok\n\nPackage: musa-sdk\n"
        "Version: 5.1.1\n"
    )
    files = {"dev/mtgpu.0": "", "var/lib/dpkg/status": packages,
             "proc/meminfo": "MemTotal: 65798144 kB\nMemAvailable: 60000000 kB\n"}  # fmt: skip
    tools = {"musaInfo": "device# 0\nName: MTT M1000\ncompute capability: 2.2\n"}
    return Machine(files, tools, {"musa": Answer(version=MUSA, count=1)})


def on_the_bus(vendor: str, device: str) -> Machine:
    """A card that no driver took."""
    folder = "sys/bus/pci/devices/0000:03:00.0"
    return Machine({f"{folder}/vendor": vendor, f"{folder}/device": device, f"{folder}/class": "0x030000\n"})
