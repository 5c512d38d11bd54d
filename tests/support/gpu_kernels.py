"""Entries of compiled kernels that no compiler made, for tests of what handles them."""

from __future__ import annotations

from typing import Any

from strata_kernels.gpu.bundle import Entry
from strata_kernels.gpu.launch import Variant
from strata_kernels.gpu.sources import Sources
from strata_kernels.gpu.targets import TARGETS


def fake_code(arch: str, nbytes: int = 200) -> bytes:
    """The header of a code object of a device, and zeros."""
    target = TARGETS[arch]
    code = bytearray(nbytes)
    code[:6] = b"\x7fELF\x02\x01"
    code[18:20] = target.machine.to_bytes(2, "little")
    code[48:52] = target.flags.to_bytes(4, "little")
    return bytes(code)


def entry_for(variant: Variant, arch: str, **changes: Any) -> Entry:
    """What a compiler would have made of a variant, but for the code."""
    facts: dict[str, Any] = {
        "key": variant.key,
        "arch": arch,
        "symbol": variant.kernel,
        "shared": 512,
        "threads": variant.warps * TARGETS[arch].lanes,
        "types": variant.types,
        "source": Sources().hash_of(variant.kernel),
        "toolchain": "a test",
        "code": fake_code(arch),
        "figures": {"vgprs": 32},
    }
    return Entry(**{**facts, **changes})
