"""Choosing between implementations of the operations: which exist, which can run here, and why one was taken.

Knows nothing of devices beyond what an implementation's `refuse` finds out. The result is a record, never a silent
fallback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata_kernels.binding import TYPES, KernelsUnavailable, load
from strata_kernels.ops import Ops


class NoImplementation(RuntimeError):
    """Nothing that was asked for can run here; the text lists each candidate with its reason."""


@dataclass(frozen=True)
class Request:
    """What operations are made for.

    `threads`: workers, the caller included. `isa`: a build's name, or the fastest. `activation_bits`: 16 or 8.
    """

    threads: int = 1
    isa: str | None = None
    activation_bits: int = 16


@dataclass(frozen=True)
class Implementation:
    """One maker of operations. `refuse` gives "" when it can run here, else the reason; `merit` says why to take it."""

    name: str
    merit: str
    refuse: Callable[[Request], str]
    make: Callable[[Request], Ops]


@dataclass(frozen=True)
class Selection:
    """An implementation taken, why, and what was turned down (name, reason)."""

    implementation: Implementation
    why: str
    rejected: tuple[tuple[str, str], ...]


def _refuse_native(request: Request) -> str:
    try:
        library = load()
    except KernelsUnavailable as error:
        return str(error)
    if request.isa is None:
        return ""
    reasons = dict(library.builds)
    return reasons.get(request.isa, f"no build {request.isa!r}; there are {', '.join(reasons)}")


def _make_native(request: Request) -> Ops:
    from strata_kernels.native import NativeOps

    return NativeOps(request.threads, request.isa, activation_bits=request.activation_bits)


def _make_reference(request: Request) -> Ops:
    import torch

    from strata_kernels.reference.ops import ReferenceOps

    torch.set_num_threads(request.threads)
    return ReferenceOps()


IMPLEMENTATIONS = (
    Implementation("native", "fastest on this CPU", _refuse_native, _make_native),
    Implementation("reference", "plain torch in f32, slow and exact", lambda request: "", _make_reference),
)


def weight_types(kernels: str) -> frozenset[str]:
    """Storage types that the operations of this name (`Ops.name`) multiply. Raises ValueError: no such name."""
    if kernels == "native":
        return frozenset(TYPES)
    if kernels == "reference":
        from strata_kernels.reference.quant import BLOCKS

        return frozenset(BLOCKS)
    if kernels == "triton":
        from strata_kernels.gpu.cells import CELLS, FLOATS

        return frozenset((*FLOATS, *CELLS))
    raise ValueError(f"there are no {kernels!r} kernels")


def choose(wanted: str, request: Request, candidates: Sequence[Implementation] = IMPLEMENTATIONS) -> Selection:
    """The first candidate (best first) that can run; only the named one unless `wanted` is "auto".

    Raises: NoImplementation when none can; ValueError when `wanted` names no candidate.
    """
    names = [candidate.name for candidate in candidates]
    if wanted != "auto" and wanted not in names:
        raise ValueError(f"kernels {wanted!r}: choose auto, {', '.join(names)}")
    rejected: list[tuple[str, str]] = []
    for candidate in candidates:
        if wanted not in ("auto", candidate.name):
            rejected.append((candidate.name, f"{wanted} was asked for"))
            continue
        reason = candidate.refuse(request)
        if reason:
            rejected.append((candidate.name, reason))
            continue
        why = candidate.merit if wanted == "auto" else "asked for"
        later = names[names.index(candidate.name) + 1 :]
        rejected += [
            (name, f"{candidate.name} comes first" if wanted == "auto" else f"{wanted} was asked for") for name in later
        ]
        return Selection(candidate, why, tuple(rejected))
    text = "; ".join(f"{name}: {reason}" for name, reason in rejected)
    raise NoImplementation(f"no kernels can run here ({text})")
