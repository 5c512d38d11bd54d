"""Compiles variants ahead of time, in processes beside this one, into a Store.

`ensure_kernels` is the face: what is there and right stays, what is missing, old or damaged is compiled. No device is
needed for any target that says `here`. Nothing here runs after a model is ready: a launcher never compiles.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from strata_kernels.gpu.bundle import BadEntry, Entry, Store
from strata_kernels.gpu.launch import Variant
from strata_kernels.gpu.sources import Sources
from strata_kernels.gpu.targets import TARGETS, Target

INSTALL = "pip install 'strata-llmrun[gpu]'"


class CompilerMissing(RuntimeError):
    """Triton is not installed here, or is not one that compiles for the device. `hint`: what to do."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.hint = hint


class BuildFailed(RuntimeError):
    """Some variants do not compile. `outcomes`: all of them, the failed ones too."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = tuple(outcomes)
        failed = [one for one in outcomes if one.error]
        first = f"{failed[0].variant.key} for {failed[0].arch}: {failed[0].error}"
        super().__init__(f"{len(failed)} of {len(outcomes)} kernels were not built; the first: {first}")


@dataclass(frozen=True)
class Outcome:
    """What became of a variant. `state`: "present", "built" or "failed"; `seconds` of compiling."""

    variant: Variant
    arch: str
    state: str
    seconds: float = 0.0
    entry: Entry | None = None
    error: str = ""
    why: str = ""  # it was compiled: "missing", "damaged: ...", "by another compiler", "forced"


Progress = Callable[[Outcome, int, int], None]  # one that is done, how many are, of how many


def ensure_kernels(
    variants: Iterable[Variant],
    arch: str,
    root: Path,
    progress: Progress | None = None,
    jobs: int = 0,
    force: bool = False,
) -> list[Outcome]:
    """See that every variant is compiled for `arch` below `root`; `jobs` processes (0: one a usable core).

    Raises BuildFailed after trying all, CompilerMissing when something must be compiled and cannot be, OSError.
    """
    store, outcomes = Store(root, arch), list[Outcome]()
    wanted = list(dict.fromkeys(variants))
    missing: list[tuple[Variant, str]] = []
    for variant in wanted:
        entry, why = _present(store, variant)
        if entry is not None and not force:
            outcomes.append(Outcome(variant, arch, "present", entry=entry))
            if progress is not None:
                progress(outcomes[-1], len(outcomes), len(wanted))
        else:
            missing.append((variant, why or "forced"))
    if missing:
        target = TARGETS[arch]
        require_compiler(target)
        report = Report(len(outcomes), len(wanted), progress)
        outcomes += _Builders(store, target, report).build(missing, jobs or usable_cores())
    if any(one.error for one in outcomes):
        raise BuildFailed(outcomes)
    return outcomes


def usable_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _present(store: Store, variant: Variant) -> tuple[Entry | None, str]:
    """The entry, or None and why it must be compiled."""
    try:
        entry = store.load(variant)
    except BadEntry as error:
        return None, f"damaged: {error}"
    return entry, "" if entry is not None else "missing"


def require_compiler(target: Target) -> None:
    """Raises CompilerMissing where this machine cannot compile for `target`."""
    if find_spec("triton") is None:
        raise CompilerMissing(f"kernels for {target.arch} are compiled by triton, which is not installed", INSTALL)
    if not target.here and find_spec(f"triton.backends.{_VENDOR[target.backend]}") is None:
        raise CompilerMissing(
            f"kernels for {target.arch} (M1000) are compiled on the device by the vendor's Triton 3.2, "
            "which is in no public package index",
            "run this on the device; here .ci/gpu-gates compiles the same sources with triton 3.2.0 as a check",
        )


_VENDOR = {"musa": "mtgpu"}


@dataclass
class Report:
    """Counts what is done and tells; one thread at a time."""

    done: int
    total: int
    progress: Progress | None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def tell(self, outcome: Outcome) -> None:
        """One more."""
        with self._lock:
            self.done += 1
            if self.progress is not None:
                self.progress(outcome, self.done, self.total)


class _Builders:
    """Threads, each with a process of its own."""

    def __init__(self, store: Store, target: Target, report: Report) -> None:
        self._store, self._target, self._report = store, target, report
        self._queue: SimpleQueue[tuple[Variant, str]] = SimpleQueue()
        self._outcomes: list[Outcome] = []
        self._stop = threading.Event()

    def build(self, missing: Sequence[tuple[Variant, str]], jobs: int) -> list[Outcome]:
        """Compile all. An interrupt ends the processes after what they are at, and leaves what is written."""
        for one in missing:
            self._queue.put(one)
        jobs = max(1, min(jobs, len(missing)))
        with tempfile.TemporaryDirectory(prefix="llmrun-triton-") as cache, ThreadPoolExecutor(jobs) as threads:
            working = [threads.submit(self._work, cache) for _ in range(jobs)]
            try:
                for one in as_completed(working):
                    one.result()
            finally:
                self._stop.set()
        return self._outcomes

    def _work(self, cache: str) -> None:
        worker: Worker | None = None
        try:
            while not self._stop.is_set():
                try:
                    variant, why = self._queue.get_nowait()
                except Empty:
                    return
                if worker is not None and not worker.alive:
                    worker.close()
                    worker = None
                worker = worker or Worker(cache)
                outcome = self._compile(worker, variant, why)
                self._outcomes.append(outcome)
                self._report.tell(outcome)
        finally:
            if worker is not None:
                worker.close()

    def _compile(self, worker: Worker, variant: Variant, why: str) -> Outcome:
        start = time.monotonic()
        answer = worker.ask(variant, self._target)
        seconds = time.monotonic() - start
        if "error" in answer:
            return Outcome(variant, self._store.arch, "failed", seconds, error=answer["error"], why=why)
        entry = make_entry(variant, self._target, answer, self._store.sources, worker.toolchain)
        try:
            self._store.put(entry)
        except BadEntry as error:
            return Outcome(variant, self._store.arch, "failed", seconds, error=str(error), why=why)
        return Outcome(variant, self._store.arch, "built", seconds, entry, why=why)


def make_entry(variant: Variant, target: Target, answer: Mapping[str, Any], sources: Sources, toolchain: str) -> Entry:
    """What a worker's answer is on disk."""
    return Entry(
        key=variant.key,
        arch=target.arch,
        symbol=answer["symbol"],
        shared=answer["shared"],
        threads=answer["threads"],
        types=variant.types,
        source=sources.hash_of(variant.kernel),
        toolchain=toolchain,
        code=base64.b64decode(answer["code"]),
        figures=answer["figures"],
    )


class Worker:
    """One compiling process; what it says on stderr is kept for the report of a crash."""

    def __init__(self, cache: str, path: Sequence[str] = ()) -> None:
        """`cache`: where triton keeps its own files. `path`: folders to import from before all others."""
        self._errors = tempfile.TemporaryFile()
        folders = [*path, str(Path(__file__).parents[2])]
        program = f"import sys; sys.path[:0] = {folders!r}; from strata_kernels.gpu.worker import main; main({cache!r})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self.alive, self.pid = True, self._process.pid
        first = self._answer()
        self.toolchain: str = first.get("ready", "")
        self._fault: str = first.get("error", "")

    def ask(self, variant: Variant, target: Target, loops: bool = False) -> dict[str, Any]:
        """The worker's answer, see worker.py; {"error": ...} also where the process died."""
        if self._fault:
            return {"error": self._fault}
        line = json.dumps({"variant": asdict(variant), "target": asdict(target), "loops": loops}) + "\n"
        stream = self._process.stdin
        try:
            if stream is not None:
                stream.write(line.encode())
                stream.flush()
        except OSError:
            return self._died()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else b""
        return json.loads(line) if line else self._died()

    def _died(self) -> dict[str, Any]:
        self.alive = False
        status = self._process.wait()
        self._errors.seek(0)
        last = self._errors.read()[-2000:].decode(errors="replace").strip()
        return {"error": f"the compiler ended with {status}: {last or 'it said nothing'}"}

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue  # it died with a request in the pipe
        self._process.wait()
        self._errors.close()
