"""The devices that kernels are compiled for: data only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """`arch`: as drivers name it. `backend`, `capability`, `lanes`: what Triton calls it, and threads of a warp.

    `machine`, `flags`: of the ELF header of its code objects (flags 0: not looked at). `shared_limit`: most bytes of
    local memory of a program. `here`: compiled by the public compiler, without the device.
    """

    arch: str
    backend: str
    capability: str | int
    lanes: int
    machine: int
    flags: int
    flags_mask: int
    shared_limit: int
    here: bool = True


AMDGPU, CUDA_ELF = 224, 190  # e_machine

TARGETS: dict[str, Target] = {
    target.arch: target
    for target in (
        Target("gfx1100", "hip", "gfx1100", 32, AMDGPU, 0x41, 0xFF, 64 << 10),
        Target("gfx1201", "hip", "gfx1201", 32, AMDGPU, 0x4E, 0xFF, 64 << 10),
        Target("sm_90", "cuda", 90, 32, CUDA_ELF, 0, 0, 227 << 10),
        # compiled on the device: the vendor's Triton is in no public package index
        Target("mp_22", "musa", 22, 128, 0, 0, 0, 28 << 10, here=False),
    )
}
ALIASES = {"m1000": "mp_22"}  # what people call it

# what stands in for a compiler of M1000 here: the same release of the language, for another device
GATE = Target("sm_80", "cuda", 80, 32, CUDA_ELF, 0, 0, 163 << 10)


def find_targets(names: Sequence[str]) -> list[Target]:
    """The targets of these names, "all" being those that can be compiled here. Raises ValueError for others."""
    found: dict[str, Target] = {}
    for name in names:
        if name == "all":
            found |= {arch: target for arch, target in TARGETS.items() if target.here}
            continue
        arch = ALIASES.get(name, name)
        if arch not in TARGETS:
            raise ValueError(f"{name} is not a device that kernels are compiled for")
        found[arch] = TARGETS[arch]
    return list(found.values())


def arch_names() -> list[str]:
    """All names that find_targets takes."""
    return [*(name for name in TARGETS if name not in ALIASES.values()), *ALIASES, "all"]
