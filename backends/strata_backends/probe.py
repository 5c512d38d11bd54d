"""Finding devices: each candidate accepted or rejected, always with the reason."""

from __future__ import annotations

from strata_backends.base import Verdict
from strata_backends.cpu import CpuBackend
from strata_kernels.binding import KernelsUnavailable, load

CANDIDATES = ("cpu",)


def probe(wanted: str = "auto") -> list[Verdict]:
    """Verdicts of all candidates, the accepted ones in order of preference.

    `wanted`: "auto", or a candidate's name: the others are then rejected. An unknown name gives one rejection more.
    """
    verdicts = [_cpu(wanted)]
    if wanted not in ("auto", *CANDIDATES):
        verdicts.append(Verdict(wanted, False, f"no such device; there are {', '.join(CANDIDATES)}"))
    return verdicts


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
