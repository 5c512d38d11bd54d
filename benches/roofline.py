#!/usr/bin/env python3
"""What this machine can do and how much of it a model's steps reach, measured in one run, as JSON lines.

Limits: bytes a second of reading and copying far beyond any cache, and the fastest packed product of this library with
8-bit and with 16-bit activations, each with 1 and with all threads. Shares: decode against both bandwidths, prefill
against the product of its mode.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from math import prod
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "backends"), str(ROOT / "kernels")]

import numpy as np  # noqa: E402

from benches.common import emit, llmrun, run_json  # noqa: E402
from strata_engine.bench.host import read_bandwidth_gb_s  # noqa: E402
from strata_engine.formats.open import open_weights  # noqa: E402
from strata_kernels.binding import TYPES, load  # noqa: E402
from strata_kernels.native import NativeOps  # noqa: E402
from strata_kernels.ops import Weight  # noqa: E402

COPY_BYTES = 1 << 28
PRODUCT = (512, 1024, 2048)  # rows, outputs, inputs: weights and activations fit a second-level cache in pieces
BITS = {"exact": 16, "fast": 8}


def main() -> None:
    """Print the limits, then the shares of each model."""
    options = read_options()
    counts = sorted({1, options.threads})
    limits = {threads: limits_of(threads) for threads in counts}
    for threads, found in limits.items():
        emit(kind="limits", threads=threads, **found)
    for model in options.models:
        for mode in options.modes.split(","):
            shares(model, mode, options, limits[options.threads])


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="GGUF files")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--modes", default="exact,fast")
    parser.add_argument("--prompts", default="512,2048")
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--reps", type=int, default=3)
    return parser.parse_args()


def limits_of(threads: int) -> dict[str, float]:
    """GB/s and GOP/s of this machine with that many threads."""
    found = {"read_gb_s": read_bandwidth_gb_s(threads), "copy_gb_s": copy_gb_s(threads)}
    found |= {f"product_{bits}_bit_gop_s": product_gop_s(threads, bits) for bits in (8, 16)}
    return {name: round(value, 2) for name, value in found.items()}


def copy_gb_s(threads: int) -> float:
    """Fastest copy; bytes read and bytes written both count."""
    source, target = np.ones(COPY_BYTES, np.uint8), np.zeros(COPY_BYTES, np.uint8)
    pieces = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        return 2 * COPY_BYTES / fastest_s(lambda: list(pool.map(lambda piece: np.copyto(*piece), pieces))) / 1e9


def product_gop_s(threads: int, bits: int) -> float:
    """Fastest matrix product with weights of 8 bits, multiplications and additions counted apart.

    16-bit activations are two planes of 8: the same unit at half the rate.
    """
    rows, outputs, inputs = PRODUCT
    ops = NativeOps(threads, activation_bits=bits)
    row_bytes = load().functions.llmrun_row_bytes(TYPES["Q8_0"], inputs)
    data = np.random.default_rng(1).integers(0, 60, (outputs, row_bytes), np.uint8)
    weight = ops.pack(Weight("Q8_0", outputs, inputs, data))
    x = np.random.default_rng(2).normal(size=(rows, inputs)).astype(np.float32)
    out = np.empty((rows, outputs), np.float32)
    ops.begin()
    ops.linear(x, [weight], [out])
    return 2 * rows * outputs * inputs / fastest_s(ops.end().run) / 1e9


def fastest_s(action: Callable[[], object], seconds: float = 0.7) -> float:
    """Fastest of many runs after one; interruptions only ever add."""
    action()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def shares(model: str, mode: str, options: argparse.Namespace, limits: dict[str, float]) -> None:
    """Lines for prefill and decode of one model in one mode, from the fastest repetition of each."""
    shape = ["-p", options.prompts, "-n", options.generate, "-r", options.reps, "-t", options.threads]
    document = run_json(llmrun("bench", model, *map(str, shape), "--mode", mode, "-o", "json", "-q"))
    weights = products_a_token(model)
    for row in document["rows"]:
        best = max(row["samples"])
        line = {"kind": "share", "model": Path(model).name, "mode": mode, "test": row["test"], "best_tps": best}
        if row["n_prompt"]:
            rate = 2 * weights * best / 1e9
            limit = limits[f"product_{BITS[mode]}_bit_gop_s"]
            emit(**line, gop_s=round(rate, 1), of_product=round(rate / limit, 3))
            continue
        rate = row["bytes_per_token"] * best / 1e9
        copy, read = limits["copy_gb_s"], limits["read_gb_s"]
        emit(**line, gb_s=round(rate, 2), of_read=round(rate / read, 3), of_copy=round(rate / copy, 3))


def products_a_token(model: str) -> float:
    """Multiplications a prompt token takes: all matrices but embedding and head, which only the last row meets.

    Of experts the share that a token uses.
    """
    with closing(open_weights(model)) as source:
        tensors = {name: meta.shape for name, meta in source.tensors().items()}
        facts = source.metadata()
    arch = facts.get("general.architecture")
    used = facts.get(f"{arch}.expert_used_count", 1) / max(1, facts.get(f"{arch}.expert_count", 1))
    matrices = {name: shape for name, shape in tensors.items() if len(shape) > 1 and name.startswith("blk.")}
    return sum(prod(shape) * (used if "_exps" in name else 1) for name, shape in matrices.items())


if __name__ == "__main__":
    main()
