"""What a device is to the engine. Vendor names stay inside this package and strata_kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from strata_kernels.ops import Ops


@dataclass(frozen=True)
class DeviceInfo:
    """One device. Bytes: the memory weights would live in. `features`: instruction sets or kernel families."""

    name: str
    arch: str
    total_bytes: int
    free_bytes: int
    features: tuple[str, ...] = ()
    known_faults: tuple[str, ...] = ()
    cores: int = 0


@dataclass(frozen=True)
class Choice:
    """A decision: what was taken, why, and what was turned down (name, reason)."""

    what: str
    taken: str
    why: str
    rejected: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Profile:
    """What the engine asks of a device's operations."""

    kernels: str = "auto"  # auto | native | reference
    mode: str = "exact"  # exact | fast
    threads: int = 0  # 0 = one per usable physical core


@dataclass(frozen=True)
class Verdict:
    """Result of probing one candidate: accepted, or rejected with the reason and what to do about it."""

    name: str
    accepted: bool
    reason: str
    info: DeviceInfo | None = None
    remedy: str = ""


@dataclass(frozen=True)
class ChosenOps:
    """Operations with the record of how they were chosen."""

    ops: Ops
    choices: tuple[Choice, ...] = field(default_factory=tuple)


class Backend(Protocol):
    """A device that runs steps."""

    name: str

    @property
    def device(self) -> str: ...

    def info(self) -> DeviceInfo: ...

    def ops(self, profile: Profile) -> ChosenOps:
        """Chosen kernels with the reasons. Raises RuntimeError when none can run, ValueError on a wrong profile."""
        ...
