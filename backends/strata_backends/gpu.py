"""What the GPU backends share: where cards are looked for, what is seen of one, faults and the backend itself.

Nothing here loads a vendor's library by itself; `Place` holds everything that reaches outside, so that tests answer for
a machine that is not there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from strata_backends.base import ChosenOps, DeviceInfo, Profile
from strata_backends.library import Answer, ask_driver, compiler_fault, run_tool


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, in one line, and what to do. `blocks`: nothing runs on the card before it is mended."""

    text: str
    remedy: str
    blocks: bool = True


@dataclass(frozen=True)
class GpuSeen:
    """One GPU. Bytes are None where no file or tool tells.

    `kind`: "" when no driver of ours could ever use it. `index`: its number for its driver, None when a variable hides
    it. `known`: what is known to go wrong on such cards, whatever is done.
    """

    kind: str
    vendor: str
    name: str
    index: int | None = 0
    arch: str = ""
    units: int = 0
    total_bytes: int | None = None
    used_bytes: int | None = None
    link: str = ""
    driver: str = ""
    node: str = ""
    features: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    graphs: bool = True
    faults: tuple[Fault, ...] = ()

    @property
    def label(self) -> str:
        """What --device takes: "hip:0"; "hip" for a card without a number."""
        return self.kind if self.index is None else f"{self.kind}:{self.index}"

    @property
    def blocking(self) -> Fault | None:
        """The first fault that keeps the card from being used."""
        return next((fault for fault in self.faults if fault.blocks), None)


@dataclass(frozen=True)
class Architecture:
    """What a family of cards can do. `least_driver`: the driver's own version number, 0 = unknown."""

    features: tuple[str, ...]
    known: tuple[str, ...] = ()
    graphs: bool = True
    least_driver: int = 0
    least_text: str = ""


MakeOps = Callable[[GpuSeen, Profile], ChosenOps]


def _unset(_name: str) -> str:
    return ""


def _may_open(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def _none_built(_arch: str) -> bool:
    return False


@dataclass(frozen=True)
class Place:
    """Where devices are looked for, and whom to ask.

    `environment`: one variable's value, "" = unset. `may_open`: rights on a device node. `run`: a tool's output, "" if
    it fails. `driver`: what the driver's library of a kind says. `built`: are there kernels for an architecture?
    `compiler`: why kernels for one cannot be compiled here, "" = they can. `make_ops`: None = this version has no
    operations for GPUs.
    """

    root: Path = Path("/")
    environment: Callable[[str], str] = _unset
    may_open: Callable[[Path], bool] = _may_open
    run: Callable[[Sequence[str]], str] = run_tool
    driver: Callable[[str], Answer] = ask_driver
    built: Callable[[str], bool] = _none_built
    compiler: Callable[[str], str] = compiler_fault
    make_ops: MakeOps | None = None


class GpuBackend:
    """A card that a driver shows. Its operations come from `place.make_ops`."""

    def __init__(self, seen: GpuSeen, place: Place) -> None:
        """`seen` has no blocking fault."""
        self.seen = seen
        self.name = seen.kind
        self._place = place

    @property
    def device(self) -> str:
        """Where arrays live: "hip:0"."""
        return self.seen.label

    def info(self) -> DeviceInfo:
        """The card and its memory."""
        return info_of(self.seen)

    def ops(self, profile: Profile) -> ChosenOps:
        """Operations on this card. Raises RuntimeError with the reason when there are none."""
        if self._place.make_ops is None:
            raise RuntimeError(f"{self.device}: {NO_OPS}")
        return self._place.make_ops(self.seen, profile)


NO_OPS = "this version computes on the processor only"


def info_of(seen: GpuSeen) -> DeviceInfo:
    """The same facts as every backend gives them; memory that nobody tells counts as 0."""
    total = seen.total_bytes or 0
    return DeviceInfo(
        name=seen.name,
        arch=seen.arch,
        total_bytes=total,
        free_bytes=max(0, total - (seen.used_bytes or 0)),
        features=seen.features,
        known_faults=seen.known,
        cores=seen.units,
    )


# ---- faults that all kinds have


def with_faults(seen: GpuSeen, place: Place, architectures: dict[str, Architecture]) -> GpuSeen:
    """The card with what its architecture is known for and with every fault, the one to mend first in front.

    Its own faults (rights, a hiding variable) come first: what follows from them is not said as well.
    """
    made_for = architectures.get(seen.arch)
    if made_for is not None:
        seen = replace(seen, features=made_for.features, known=made_for.known, graphs=made_for.graphs)
    if seen.blocking is not None:
        return seen
    if made_for is None:
        return _add(seen, _unsupported(seen, architectures))
    return _add(seen, *_driver_faults(seen, place, made_for), *_kernel_faults(seen, place))


def _add(seen: GpuSeen, *faults: Fault) -> GpuSeen:
    return replace(seen, faults=(*seen.faults, *faults))


def _unsupported(seen: GpuSeen, architectures: Iterable[str]) -> Fault:
    if not seen.arch:
        return Fault("its architecture could not be found out", "install the vendor's driver and tools")
    return Fault(f"there are no kernels for {seen.arch}, only for {', '.join(architectures)}", "--device cpu")


def _driver_faults(seen: GpuSeen, place: Place, made_for: Architecture) -> list[Fault]:
    answer = place.driver(seen.kind)
    if answer.fault:
        return [Fault(answer.fault, _INSTALL[seen.kind])]
    if answer.version and answer.version < made_for.least_driver:
        text = f"its driver ({version_text(seen.kind, answer.version)}) is too old for {seen.arch}"
        return [Fault(text, f"install {made_for.least_text}")]
    if seen.index is not None and answer.count <= seen.index:
        text = f"its driver shows {answer.count} devices, not this one"
        return [Fault(text, "look into the kernel's log: dmesg")]
    return []


def version_text(kind: str, number: int) -> str:
    """A driver's own version number for people: ROCm packs it as 60443482 (6.4), CUDA and MUSA as 12080 (12.8)."""
    if kind == "hip":
        return f"ROCm {number // 10**7}.{number // 10**5 % 100}"
    return f"{kind.upper()} {number // 1000}.{number // 10 % 100}"


_INSTALL = {
    "hip": "install ROCm's runtime (libamdhip64.so)",
    "cuda": "install the vendor's driver (libcuda.so.1)",
    "musa": "install the vendor's driver (libmusa.so)",
}


def _kernel_faults(seen: GpuSeen, place: Place) -> list[Fault]:
    if place.built(seen.arch):
        return []
    reason = place.compiler(seen.arch)
    if not reason:
        return [Fault(f"kernels for {seen.arch} are not built yet", "llmrun kernels build", blocks=False)]
    return [Fault(f"not built, and cannot be here: {reason}", _COMPILER[seen.kind])]


_COMPILER = {
    "hip": "pip install 'strata-llmrun[gpu]'",
    "cuda": "pip install 'strata-llmrun[gpu]'",
    "musa": "install the Triton of the vendor's image",
}


# ---- variables that hide and renumber cards


def numbered(cards: Sequence[GpuSeen], variables: Sequence[str], place: Place) -> list[GpuSeen]:
    """The cards with the numbers their driver gives them, hidden ones last.

    The first variable that is set decides. Names that are no numbers (UUIDs) leave the order alone.
    """
    name = next((v for v in variables if place.environment(v)), "")
    words = [word.strip() for word in place.environment(name).split(",")] if name else []
    if not all(word.isdigit() for word in words) or not words:
        return [replace(card, index=index) for index, card in enumerate(cards)]
    order: list[int] = []
    for word in words:  # a number that is not there hides all behind it
        if int(word) >= len(cards) or int(word) in order:
            break
        order.append(int(word))
    shown = [replace(cards[old], index=new) for new, old in enumerate(order)]
    fault = Fault(f"hidden by {name}={place.environment(name)}", f"unset {name}")
    rest = [replace(card, index=None, faults=(fault,)) for i, card in enumerate(cards) if i not in order]
    return [*shown, *rest]


def rights_fault(nodes: Sequence[Path], place: Place, group: str, container: str) -> tuple[Fault, ...]:
    """The first of the device nodes that cannot be opened: a missing one is a container's, others want a group."""
    for node in nodes:
        name = "/" + node.relative_to(place.root).as_posix()
        if not node.exists():
            return (Fault(f"{name} is not there", f"in a container start it with {container}"),)
        if not place.may_open(node):
            return (Fault(f"no rights on {name}", f"sudo usermod -aG {group} $USER, then log in again"),)
    return ()


__all__ = ["Answer", "Architecture", "Fault", "GpuBackend", "GpuSeen", "MakeOps", "NO_OPS", "Place", "info_of",
           "numbered", "rights_fault", "with_faults"]  # fmt: skip
