"""Compiled kernels that are none, for the stand-in driver: it knows them by their bytes and interprets them."""

from __future__ import annotations

import ctypes
import struct
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strata_kernels.gpu.bundle import Entry, Store
from strata_kernels.gpu.bundled import BundleLauncher
from strata_kernels.gpu.driver import Driver, DriverAllocator, open_driver
from strata_kernels.gpu.launch import Variant
from strata_kernels.gpu.ops import GpuOps
from strata_kernels.gpu.table import find_kernel
from tests.support.gpu_kernels import entry_for, fake_code
from tests.support.standin.library import Seen, StandIn

TORCH = {
    "*fp32": torch.float32, "*fp16": torch.float16, "*i8": torch.int8, "*u8": torch.uint8, "*i16": torch.int16,
    "*i32": torch.int32, "*i64": torch.int64,
}  # fmt: skip


class StandInStore(Store):
    """A store on disk that makes what it is asked for. Every entry is known to the stand-in, which interprets it."""

    def __init__(self, standin: StandIn, root: Path, arch: str) -> None:
        super().__init__(root, arch)
        self._standin = standin
        self._variants: dict[str, Variant] = {}
        standin.run = self._interpret

    def load(self, variant: Variant) -> Entry | None:
        """As Store, of an entry just made when there is none."""
        if not self.path(variant).exists():
            self.make(variant)
        return super().load(variant)

    def make(self, variant: Variant) -> Path:
        """Put an entry for a variant."""
        mark = sha256(variant.key.encode()).hexdigest()[:16]
        code, symbol = fake_code(self.arch) + mark.encode(), f"{variant.kernel}_{mark}"
        self._standin.know(code, symbol, len(variant.types) + 2)
        self._variants[symbol] = variant
        return self.put(entry_for(variant, self.arch, symbol=symbol, code=code))

    def _interpret(self, seen: Seen) -> None:
        variant = self._variants[seen.symbol]
        *given, first, second = seen.values
        assert (first, second) == (0, 0), "a kernel's scratch memory is not null"
        values = [_value(kind, bits) for kind, bits in zip(variant.types, given, strict=True)]
        with np.errstate(all="ignore"):  # a device knows no warnings
            find_kernel(variant.kernel)[seen.grid](*values, **dict(variant.constants))


def _value(kind: str, bits: int) -> Any:
    """An argument as the interpreter takes it. Of memory it needs no more than the address."""
    if kind == "fp32":
        return struct.unpack("<f4x", struct.pack("<Q", bits))[0]
    if kind == "i32":
        return struct.unpack("<i4x", struct.pack("<Q", bits))[0]
    dtype = TORCH[kind.rstrip("?")]
    return torch.frombuffer((ctypes.c_uint8 * dtype.itemsize).from_address(bits), dtype=dtype)


def open_standin(standin: StandIn, kind: str = "cuda", graphs: bool = True) -> Driver:
    """A device of the stand-in that bundles can be made for."""
    standin.device(memory=1 << 30, gfx="gfx1100", major=2 if kind == "musa" else 9, minor=2 if kind == "musa" else 0)
    return open_driver(kind, library=standin.path, graphs=graphs)


def standin_ops(standin: StandIn, root: Path, kind: str = "cuda", graphs: bool = True) -> GpuOps:
    """All operations through launcher, driver and stand-in."""
    driver = open_standin(standin, kind, graphs)
    launcher = BundleLauncher(driver, StandInStore(standin, root, driver.arch))
    return GpuOps(launcher, DriverAllocator(driver))
