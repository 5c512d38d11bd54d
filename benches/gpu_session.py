#!/usr/bin/env python3
"""All that is to be measured when a card is at hand, in one run of less than eight minutes, as JSON lines.

    python benches/gpu_session.py --out session.json          # the best card of this machine
    python benches/gpu_session.py --dry-run                    # tiny shapes in Triton's interpreter, no card

Parts, each skipped (and said) when less time is left than it may take:
device    name, driver, bandwidth of a copy
ops       the shared operation tests on the card (pytest -m gpu)
toy       greedy answers of the toy model, on the card and on the processor; tokens a second
shapes    decode at 1, 4, 8, 16 rows, prompts of 250 and 2,048 tokens, of Qwen3-30B-A3B and Qwen3.5-35B-A3B shapes with
          random weights made on the card: step ms, share of the measured bandwidth, host time a step
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "backends"), str(ROOT / "kernels")]

GOALS = {"share_of_bandwidth_at_1_row": 0.45, "overhead_ms_per_step": 1.5, "prefill_250_ms": 60.0}  # on an H200


@dataclass
class Session:
    """One run: where results go, what time is left."""

    out: Path | None
    budget_s: float
    began_s: float = field(default_factory=time.monotonic)
    results: list[dict[str, Any]] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        """Seconds of the budget."""
        return self.budget_s - (time.monotonic() - self.began_s)

    def tell(self, kind: str, **facts: Any) -> None:
        """One result, at once on stdout and in the file: a killed run keeps what it had."""
        self.results.append({"kind": kind, "at_s": round(time.monotonic() - self.began_s, 1), **facts})
        print(json.dumps(self.results[-1]), flush=True)
        if self.out is not None:
            self.out.write_text(json.dumps({"goals": GOALS, "results": self.results}, indent=1) + "\n")

    def part(self, name: str, least_s: float, run: Callable[[], None]) -> None:
        """Run a part; what goes wrong in it is a result too."""
        if self.left_s < least_s:
            self.tell("skipped", part=name, why=f"{self.left_s:.0f} s are left, it may take {least_s:.0f}")
            return
        try:
            run()
        except Exception as error:  # noqa: BLE001  # a session on a lent card goes on with its next part
            self.tell("failed", part=name, error=f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class Card:
    """What runs: operations, and how to wait for all of it. `bandwidth`: GB/s of a copy, both ways counted."""

    ops: Any
    wait: Callable[[], None]
    free_bytes: int
    bandwidth: float = 0.0


def open_card(session: Session, device: str, root: Path) -> Card:
    """The card, its facts told. Raises RuntimeError where there is none."""
    from strata_backends.base import Profile
    from strata_backends.gpu import Place
    from strata_backends.gpu_ops import gpu_ops
    from strata_backends.probe import choose

    backend, verdicts = choose(device, Place(make_ops=gpu_ops(root)))
    session.tell("devices", verdicts=[[one.name, one.accepted, one.reason] for one in verdicts])
    if backend is None or backend.name == "cpu":
        raise RuntimeError("no usable card")
    chosen, info = backend.ops(Profile()), backend.info()
    driver = chosen.ops.launcher.driver
    card = Card(chosen.ops, driver.wait, driver.memory()[0])
    card = replace(card, bandwidth=bandwidth(card))
    session.tell(
        "device", name=info.name, arch=info.arch, total_gb=info.total_bytes / 1e9, copy_gb_s=card.bandwidth,
        choices=[[one.what, one.taken, one.why] for one in chosen.choices],
    )  # fmt: skip
    return card


def interpreted_card() -> Card:
    """Triton's interpreter in the place of a card."""
    from strata_kernels.gpu.arrays import HostAllocator
    from strata_kernels.gpu.interpreted import InterpretedLauncher
    from strata_kernels.gpu.ops import GpuOps

    return Card(GpuOps(InterpretedLauncher(), HostAllocator(host=False)), lambda: None, 2 << 30, 1.0)


def bandwidth(card: Card, nbytes: int = 1 << 30, times: int = 10) -> float:
    """GB/s of copying on the device, reads and writes counted."""
    one, other = card.ops.allocator.allocate(nbytes), card.ops.allocator.allocate(nbytes)
    other.copy(0, one, 0, nbytes)
    card.wait()
    begun = time.perf_counter()
    for _ in range(times):
        other.copy(0, one, 0, nbytes)
    card.wait()
    return round(2 * nbytes * times / (time.perf_counter() - begun) / 1e9, 1)


def run_ops(session: Session, device: str) -> None:
    """The shared operation tests on the card."""
    env = {**os.environ, "LLMRUN_TEST_DEVICE": device}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:randomly", "tests/kernels", "--tb=line"]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=max(30, session.left_s / 2)
    )
    session.tell("ops", rc=done.returncode, tail=done.stdout.splitlines()[-40:])


def run_toy(session: Session, device: str, root: Path, tokens: int) -> None:
    """The toy's answers, on the card and on the processor."""
    from strata_backends.cpu import CpuBackend
    from strata_backends.gpu import Place
    from strata_backends.gpu_ops import gpu_ops
    from strata_backends.probe import choose
    from strata_engine.chat import TokenRequest
    from strata_engine.config import EngineConfig, SamplingParams
    from strata_engine.registry.local import local_model
    from strata_engine.runtime.engine import Engine

    card = choose(device, Place(make_ops=gpu_ops(root)))[0]
    files, params = local_model(str(ROOT / "tests/fixtures/toy")), SamplingParams(temperature=0.0, max_tokens=tokens)
    answers, speeds, took = [], [], 1.0
    for backend in (card, CpuBackend()):
        with Engine.open(files, EngineConfig(context_tokens=512, max_sequences=2), backend) as engine:
            events: list[Any] = []
            for _ in range(2):
                begun = time.perf_counter()
                events = list(engine.submit(TokenRequest(ids=tuple(range(5, 25))), params))
                took = time.perf_counter() - begun
            answers.append([token.id for event in events for token in getattr(event, "tokens", ())])
            speeds.append(round(len(answers[-1]) / took, 1))
    session.tell("toy", same=answers[0] == answers[1], tokens=len(answers[0]), card_tps=speeds[0], cpu_tps=speeds[1])


def run_shape(session: Session, card: Card, name: str, quant: str, sizes: dict[str, Any]) -> None:
    """One synthetic model: decode and prompts."""
    from benches.generate_model import mix_of
    from benches.model_shapes import PRESETS
    from benches.synthetic import SyntheticOps, write_sparse
    from strata_engine.core.batch import BatchLimits
    from strata_engine.formats.open import open_weights
    from strata_engine.memory.memory import Memory
    from strata_engine.models.load import load_model
    from strata_engine.runtime.executor import Executor

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        matrix_bytes = write_sparse(path, PRESETS[name], mix_of(quant), sizes["vocabulary"])
        begun = time.perf_counter()
        ops = SyntheticOps(card.ops.launcher, card.ops.allocator, card.ops.build)
        source = open_weights(path)
        model = load_model(source, ops).model
        memory = Memory(model.memory(), sizes["pages"], 32, "f16", ops.zeros, max(sizes["rows"]))
        rows = max(*sizes["rows"], *sizes["prompts"])
        limits = BatchLimits(rows, max(sizes["rows"]), sizes["pages"] * 32 // max(sizes["rows"]), max(sizes["rows"]))
        executor = Executor(model, ops, memory, limits)
        loaded_s = time.perf_counter() - begun
        with ops.planning() as variants:
            executor.plan()
        built = ops.build(variants)
    shape = PRESETS[name]
    session.tell("loaded", model=name, quant=quant, matrix_gb=matrix_bytes / 1e9, load_s=round(loaded_s, 1),
                 variants=len(variants), built=built,
                 build_s=round(time.perf_counter() - begun - loaded_s, 1))  # fmt: skip
    active = active_bytes(shape, quant, sizes["vocabulary"])
    for count in sizes["rows"]:
        ms, host_ms = decode_ms(executor, memory, card, count, (sizes["warm"], sizes["steps"]))
        floor = active / card.bandwidth / 1e6 if count == 1 else None
        session.tell("decode", model=name, rows=count, step_ms=ms, host_ms=host_ms, tps=round(1000 * count / ms, 1),
                     floor_ms=floor, share=round(floor / ms, 3) if floor else None)  # fmt: skip
    for count in sizes["prompts"]:
        ms = prompt_ms(executor, memory, card, count, sizes["warm"])
        session.tell("prompt", model=name, tokens=count, ms=ms, tps=round(1000 * count / ms, 1))


def active_bytes(shape: Any, quant: str, vocabulary: int) -> float:
    """Bytes of weights that a token of one sequence reads: experts count as many as are used."""
    from math import prod

    from benches.generate_model import _nbytes, mix_of, type_of
    from benches.model_shapes import tensors

    mix, total = mix_of(quant), 0.0
    for plan in tensors(shape, vocabulary):
        nbytes = _nbytes(plan, type_of(plan, mix, shape.layers))
        if plan.role.endswith("_exps"):
            nbytes = nbytes * shape.experts.used / shape.experts.count
        total += nbytes if prod(plan.shape) else 0
    return total


def decode_ms(executor: Any, memory: Any, card: Card, rows: int, steps: tuple[int, int]) -> tuple[float, float]:
    """Median milliseconds of a step of `rows` sequences, and of filling its buffers. `steps`: to warm up, to time."""
    from strata_engine.core.batch import Span
    from strata_engine.core.sequence import Hold

    holds = [Hold() for _ in range(rows)]
    times = []
    for step in range(sum(steps)):
        for hold in holds:
            memory.reserve(hold, 1)
            memory.commit(hold, 1)
        begun = time.perf_counter()
        executor.run_tops([Span([7 + step], hold.tokens - 1, hold.pages, 1, hold.slot) for hold in holds])
        card.wait()
        times.append(1000 * (time.perf_counter() - begun))
    begun = time.perf_counter()
    executor._buffers.fill([Span([7], hold.tokens - 1, hold.pages, 1, hold.slot) for hold in holds])
    host = 1000 * (time.perf_counter() - begun)
    for hold in holds:
        memory.release(hold)
    return round(statistics.median(times[steps[0] :]), 3), round(host, 3)


def prompt_ms(executor: Any, memory: Any, card: Card, count: int, warm: int) -> float:
    """Median milliseconds of one prompt, its first step of that size left out."""
    from strata_engine.core.batch import Span
    from strata_engine.core.sequence import Hold

    times = []
    for _ in range(warm + 1):
        hold = Hold()
        memory.reserve(hold, count)
        memory.commit(hold, count)
        begun = time.perf_counter()
        executor.run_tops([Span([7 + i % 90 for i in range(count)], 0, hold.pages, 1, hold.slot)])
        card.wait()
        times.append(1000 * (time.perf_counter() - begun))
        memory.release(hold)
    return round(statistics.median(times[min(1, warm) :]), 2)


REAL = {"vocabulary": 151936, "pages": 2048, "rows": (1, 4, 8, 16), "prompts": (250, 2048), "warm": 3, "steps": 30}
DRY = {"vocabulary": 512, "pages": 8, "rows": (1,), "prompts": (20,), "warm": 0, "steps": 1}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description="Measure everything on a card, in one run.")
    made.add_argument("--device", default="auto")
    made.add_argument("--out", type=Path)
    made.add_argument("--budget", type=float, default=480, metavar="S")
    made.add_argument("--kernels", type=Path, default=Path.home() / ".cache/llmrun/kernels")
    made.add_argument("--dry-run", action="store_true", help="tiny shapes in Triton's interpreter")
    return made


def main() -> int:
    """Run the session; 0 when nothing failed."""
    asked = parser().parse_args()
    session = Session(asked.out, asked.budget)
    if asked.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
        card = interpreted_card()
        for name in ("moe-tiny", "moe35-tiny"):
            session.part(name, 0, lambda name=name: run_shape(session, card, name, "Q4_0", DRY))
    else:
        try:
            card = open_card(session, asked.device, asked.kernels)
        except RuntimeError as error:
            session.tell("failed", part="device", error=str(error))
            return 1
        session.part("toy", 60, lambda: run_toy(session, asked.device, asked.kernels, 64))
        session.part("ops", 120, lambda: run_ops(session, asked.device))
        for name, quant in (("moe-a3b", "Q4_K_M"), ("moe35-a3b", "Q4_0")):
            session.part(name, 60, lambda name=name, quant=quant: run_shape(session, card, name, quant, REAL))
    return int(any(result["kind"] == "failed" for result in session.results))


if __name__ == "__main__":
    sys.exit(main())
