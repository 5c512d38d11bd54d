"""Every maker of operations that this machine can run, for the shared tests: the reference, and each native build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from strata_kernels.binding import library_path, load
from strata_kernels.native import NativeOps
from strata_kernels.ops import Ops
from strata_kernels.reference.ops import ReferenceOps


@dataclass(frozen=True)
class Maker:
    """A way to make operations. `absent`: why it cannot be made here ("" = it can)."""

    name: str
    make: Callable[[int], Ops]  # thread count -> Ops
    threaded: bool = True
    absent: str = ""


def makers() -> list[Maker]:
    """The reference, then the native builds."""
    return [Maker("reference", lambda threads: ReferenceOps(), threaded=False), *native_makers()]


def native_makers() -> list[Maker]:
    """One maker a native build this CPU can run; one absent maker when the library was not built.

    A library that is there but does not load is a failure, not a reason to skip.
    """
    if not library_path().exists():
        return [Maker("native", lambda threads: NativeOps(threads), absent=f"{library_path().name} was not built")]
    usable = [isa for isa, refused in load().builds if not refused]
    return [Maker(f"native-{isa}-{bits}", partial(_native, isa, bits)) for isa in usable for bits in (16, 8)]


def _native(isa: str, bits: int, threads: int) -> Ops:
    return NativeOps(threads, isa, activation_bits=bits)
