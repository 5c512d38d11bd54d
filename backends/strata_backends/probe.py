"""Finding devices: each candidate accepted or rejected, always with the reason."""

from __future__ import annotations

from strata_backends import cuda, hip, musa, pci
from strata_backends.base import Backend, Verdict
from strata_backends.cpu import CpuBackend
from strata_backends.gpu import NO_OPS, GpuBackend, GpuSeen, Place, info_of
from strata_backends.names import KINDS, OVERRIDES, parse_device
from strata_kernels.binding import KernelsUnavailable, load

_FINDERS = {"cuda": cuda.find, "hip": hip.find, "musa": musa.find}


def gpus(place: Place = Place()) -> list[GpuSeen]:
    """Every GPU that a driver shows, then those on the bus that no driver took."""
    found = [card for find in _FINDERS.values() for card in find(place)]
    return [*found, *pci.find(place, {card.vendor for card in found})]


def overrides(place: Place) -> dict[str, str]:
    """Variables that change what a driver reports or shows."""
    return {name: value for name in OVERRIDES if (value := place.environment(name))}


def probe(wanted: str = "auto", place: Place = Place()) -> list[Verdict]:
    """Verdicts of all candidates, the accepted ones in order of preference: a usable GPU before the processor.

    `wanted`: "auto", or a device's name ("hip", "hip:1"): all others are then rejected. Raises ValueError for a name
    that is no device's.
    """
    return choose(wanted, place)[1]


def choose(wanted: str = "auto", place: Place = Place()) -> tuple[Backend | None, list[Verdict]]:
    """The backend of the first accepted candidate, None when all are rejected; and all verdicts. Raises as `probe`."""
    kind, index = parse_device(wanted)
    cards = [] if kind == "cpu" else [card for card in gpus(place) if kind in ("auto", card.kind) and card.kind]
    verdicts = [_gpu(card, place, wanted, index) for card in cards]
    usable = next((card for card, verdict in zip(cards, verdicts, strict=True) if verdict.accepted), None)
    if kind in _FINDERS and not any(card.index == index for card in cards):
        verdicts.append(_not_there(kind, index, cards))
    passed_over = tuple((verdict.name, verdict.reason) for verdict in verdicts)
    verdicts.append(_cpu(wanted))
    if usable is not None:
        return GpuBackend(usable, place), verdicts
    return CpuBackend(passed_over=passed_over) if verdicts[-1].accepted else None, verdicts


def _gpu(card: GpuSeen, place: Place, wanted: str, index: int) -> Verdict:
    info = info_of(card)
    if wanted != "auto" and card.index is not None and card.index != index:
        return Verdict(card.label, False, f"{wanted} was asked for", info)
    fault = card.blocking
    if fault is not None:
        return Verdict(card.label, False, fault.text, info, fault.remedy)
    if place.make_ops is None:
        return Verdict(card.label, False, NO_OPS, info, "--device cpu")
    return Verdict(card.label, True, f"{card.name} ({card.arch}), {card.driver}", info)


def _not_there(kind: str, index: int, cards: list[GpuSeen]) -> Verdict:
    numbers = [str(card.index) for card in cards if card.index is not None]
    if not numbers:
        return Verdict(f"{kind}:{index}", False, f"no card of kind {kind} is there", None, "llmrun hw shows what is")
    return Verdict(f"{kind}:{index}", False, f"there is no such card, only {kind}:{f', {kind}:'.join(numbers)}", None,
                   "llmrun hw shows all")  # fmt: skip


def _cpu(wanted: str) -> Verdict:
    backend = CpuBackend()
    info = backend.info()
    if wanted not in ("auto", "cpu"):
        return Verdict("cpu", False, f"{wanted} was asked for", info)
    try:
        library = load()
    except KernelsUnavailable as error:
        return Verdict("cpu", True, f"{info.cores} cores; slow torch reference only: {error}", info)
    usable = [name for name, reason in library.builds if not reason]
    return Verdict("cpu", True, f"{info.cores} cores; native kernels ({usable[-1]})", info)


__all__ = ["KINDS", "choose", "gpus", "overrides", "parse_device", "probe"]
