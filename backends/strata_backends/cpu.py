"""The CPU as a device: what it offers, and which operations run on it and why."""

from __future__ import annotations

import platform

from strata_backends import machine
from strata_backends.base import Choice, ChosenOps, DeviceInfo, Profile
from strata_kernels import registry
from strata_kernels.binding import KernelsUnavailable, Library, load
from strata_kernels.registry import NoImplementation, Request, Selection

MODES = ("exact", "fast")


class CpuBackend:
    """Runs steps on the processor.

    `isa` forces one instruction-set build ("generic", "avx2", "avx512", "neon"); None takes the fastest usable.
    `passed_over`: devices that were looked at first, each with the reason why not; it becomes a choice of its own.
    """

    name = "cpu"

    def __init__(self, isa: str | None = None, passed_over: tuple[tuple[str, str], ...] = ()) -> None:
        """Looks at nothing yet."""
        self._isa = isa
        self._passed_over = passed_over

    @property
    def device(self) -> str:
        """Where arrays live."""
        return "cpu"

    def info(self) -> DeviceInfo:
        """The processor, its usable cores and memory; features are empty when the kernel library is not built."""
        total_bytes, free_bytes = machine.memory_bytes()
        library = _library()
        return DeviceInfo(
            name=machine.cpu_name(),
            arch=platform.machine(),
            total_bytes=total_bytes,
            free_bytes=free_bytes,
            features=library.features if library else (),
            known_faults=(),
            cores=machine.usable_cores(),
        )

    def ops(self, profile: Profile) -> ChosenOps:
        """Operations for `profile`, with a Choice for kernels, instruction set, threads and mode.

        Raises: RuntimeError with each candidate's reason when what was asked for cannot run; ValueError on an unknown
        kernels or mode name or a negative thread count.
        """
        if profile.mode not in MODES:
            raise ValueError(f"mode {profile.mode!r}: choose {' or '.join(MODES)}")
        if profile.threads < 0:
            raise ValueError(f"threads must be 0 (one per usable core) or more, not {profile.threads}")
        cores = machine.usable_cores()
        threads = profile.threads or cores
        request = Request(threads=threads, isa=self._isa, activation_bits=8 if profile.mode == "fast" else 16)
        selection = registry.choose(profile.kernels, request)
        ops = selection.implementation.make(request)
        choices = [*_device_choice(self._passed_over)]
        choices.append(Choice("kernels", selection.implementation.name, selection.why, selection.rejected))
        if selection.implementation.name == "native":
            choices.append(_isa_choice(getattr(ops, "isa", ""), self._isa))
        choices += [_threads_choice(profile.threads, cores), _mode_choice(profile.mode, selection)]
        return ChosenOps(ops, tuple(choices))


def _library() -> Library | None:
    try:
        return load()
    except KernelsUnavailable:
        return None


def _device_choice(passed_over: tuple[tuple[str, str], ...]) -> list[Choice]:
    """Why not a GPU, where there is one."""
    if not passed_over:
        return []
    why = "not " + "; not ".join(f"{name}: {reason}" for name, reason in passed_over)
    return [Choice("processor or GPU", "processor", why, passed_over)]


def _isa_choice(taken: str, forced: str | None) -> Choice:
    """Which build, and why not the others (builds are listed slowest first)."""
    builds = load().builds
    names = [name for name, _ in builds]
    rejected = []
    for name, reason in builds:
        if name != taken:
            slower = f"slower than {taken}" if names.index(name) < names.index(taken) else f"{taken} was asked for"
            rejected.append((name, reason or slower))
    why = "asked for" if forced else "the fastest build this CPU and its operating system can run"
    return Choice("instruction set", taken, why, tuple(rejected))


def _threads_choice(asked: int, cores: int) -> Choice:
    if not asked:
        return Choice("threads", str(cores), f"one for each of the {cores} physical cores this process may use")
    note = f"asked for; this process may use {cores} cores"
    return Choice("threads", str(asked), note)


def _mode_choice(mode: str, selection: Selection) -> Choice:
    if selection.implementation.name != "native":
        why = "f32 throughout; the same bits for a row whatever it is batched with"
        rejected = (("fast", "the plain torch operations have no faster variant"),) if mode == "fast" else ()
        return Choice("mode", "exact", why, rejected)
    if mode == "exact":
        return Choice("mode", "exact", "16-bit activations; the same bits for a row whatever it is batched with")
    return Choice("mode", "fast", "asked for: 8-bit activations, about 3e-3 nats from the exact forward")


__all__ = ["CpuBackend", "NoImplementation"]
