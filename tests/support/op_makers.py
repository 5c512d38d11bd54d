"""Every maker of operations that this machine can run, for the shared tests: the reference, and each native build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    """The reference with and without its cache, then the native builds."""
    reference = Maker("reference", lambda threads: ReferenceOps(), threaded=False)
    return [reference, *native_makers()]


def native_makers() -> list[Maker]:
    """One maker a native build this CPU can run; one absent maker when the library is not there."""
    return [Maker("native", lambda threads: ReferenceOps(), absent="pending")]
