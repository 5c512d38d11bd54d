"""Speed of single native operations, as JSON lines.

`python benches/ops.py [--threads 2] [--isa avx512] [--only decode] [--types Q4_K,IQ3_S]`: a line for each operation and
shape with its time, GB/s for what is bound by memory (and the share of the copy bandwidth measured in the same run),
GOP/s for what computes (and the share of the fastest product of the run).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "backends"), str(ROOT / "kernels")]

import torch  # noqa: E402

from benches.common import emit  # noqa: E402
from strata_kernels.binding import TYPES, load  # noqa: E402
from strata_kernels.native import NativeOps  # noqa: E402
from strata_kernels.ops import DeltaRule, KvLayer, Rotary, Rows, Weight  # noqa: E402

SHAPES = ((1536, 576), (9728, 2560), (2560, 9728))  # N, K: a small and a large feed-forward
STREAM_BYTES = 1 << 29  # matrices of a bandwidth case together: far beyond any cache


def best_s(ops: NativeOps, record: Callable[[], None], seconds: float = 0.4) -> float:
    """Fastest time of one replay of what `record` records; the machine's interruptions only ever add."""
    ops.begin()
    record()
    step = ops.end()
    step.run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        step.run()
        times.append(time.perf_counter() - start)
    return min(times)


def copy_bandwidth(threads: int) -> float:
    """Bytes moved a second (read and written) by a large copy."""
    torch.set_num_threads(threads)
    source, target = torch.ones(1 << 26), torch.empty(1 << 26)
    rates = []
    for _ in range(7):
        start = time.perf_counter()
        target.copy_(source)
        rates.append(2 * source.numel() * 4 / (time.perf_counter() - start))
    return statistics.median(rates[1:])


def random_weight(ops: NativeOps, kind: str, rows: int, cols: int) -> Weight:
    """A packed matrix of random bytes (its values do not matter here)."""
    row_bytes = load().functions.llmrun_row_bytes(TYPES[kind], cols)
    return ops.pack(Weight(kind, rows, cols, torch.randint(0, 60, (rows, row_bytes), dtype=torch.uint8)))


def decode_lines(ops: NativeOps, bandwidth: float, kinds: Sequence[str]) -> None:
    """One row against more matrices than a cache holds."""
    rows, cols = SHAPES[1]
    for kind in kinds:
        first = random_weight(ops, kind, rows, cols)
        count = max(1, STREAM_BYTES // first.data.nbytes)
        weights = [first] + [random_weight(ops, kind, rows, cols) for _ in range(count - 1)]
        x, out = torch.randn(1, cols), torch.empty(1, rows)

        def record(weights: list[Weight] = weights, x: torch.Tensor = x, out: torch.Tensor = out) -> None:
            for weight in weights:
                ops.linear(x, [weight], [out])

        seconds = best_s(ops, record)
        rate = count * first.data.nbytes / seconds
        emit(op="linear", type=kind, rows=1, n=rows, k=cols, us=round(seconds / count * 1e6, 1),
             gb_s=round(rate / 1e9, 2), share_of_copy=round(rate / bandwidth, 3))  # fmt: skip


def prefill_lines(ops: NativeOps, kinds: Sequence[str]) -> None:
    """Many rows: arithmetic decides."""
    results = []
    for kind in kinds:
        for n, k in SHAPES:
            if load().functions.llmrun_row_bytes(TYPES[kind], k) < 0:
                continue  # rows are not whole blocks of the type
            weight = random_weight(ops, kind, n, k)
            for rows in (16, 64, 512):
                x, out = torch.randn(rows, k), torch.empty(rows, n)
                seconds = best_s(ops, lambda x=x, weight=weight, out=out: ops.linear(x, [weight], [out]))
                results.append((kind, rows, n, k, seconds, 2 * rows * n * k / seconds / 1e9))
    best = max(result[-1] for result in results)
    for kind, rows, n, k, seconds, rate in results:
        emit(op="linear", type=kind, rows=rows, n=n, k=k, us=round(seconds * 1e6, 1), gop_s=round(rate, 1),
             share_of_best=round(rate / best, 3))  # fmt: skip


def attention_lines(ops: NativeOps, bandwidth: float) -> None:
    """Decode at depth and prefill, for the head counts of SmolLM2 and of a 4 B model."""
    for heads, kv_heads, width in ((9, 3, 64), (32, 8, 128)):
        for rows, depth in ((1, 512), (1, 4096), (512, 0), (512, 4096)):
            page, tokens = 32, rows + depth
            pages = -(-tokens // page)
            cache = KvLayer(*(torch.randn(pages, kv_heads, page, width).half() for _ in range(2)))
            positions = torch.arange(depth, tokens, dtype=torch.int32)
            where = Rows(positions, torch.zeros(rows, dtype=torch.int32), positions,
                         torch.arange(pages, dtype=torch.int32)[None].contiguous())  # fmt: skip
            q, out = torch.randn(rows, heads, width), torch.empty(rows, heads, width)
            seconds = best_s(ops, lambda q=q, c=cache, w=where, out=out: ops.attention(q, c, w, 0.1, out))
            flops = 4 * heads * width * sum(range(depth + 1, tokens + 1))
            kv_rate = 2 * tokens * kv_heads * width * 2 / seconds
            emit(op="attention", type="F16", rows=rows, depth=depth, heads=heads, kv_heads=kv_heads, width=width,
                 us=round(seconds * 1e6, 1), gop_s=round(flops / seconds / 1e9, 1), kv_gb_s=round(kv_rate / 1e9, 2),
                 kv_share_of_copy=round(kv_rate / bandwidth, 3))  # fmt: skip


def small_lines(ops: NativeOps) -> None:
    """What is neither a product nor attention, at one row and at a prefill chunk."""
    for rows in (1, 512):
        x, y = torch.randn(rows, 576), torch.empty(rows, 576)
        gate, up = torch.randn(rows, 1536), torch.randn(rows, 1536)
        heads = torch.randn(rows, 9, 64)
        where = Rows(*(torch.arange(rows, dtype=torch.int32) for _ in range(3)), torch.zeros(1, 1, dtype=torch.int32))
        rotary, norm = Rotary(torch.rand(32), adjacent=True), torch.ones(576)
        cases = {
            "rms_norm": lambda x=x, y=y, norm=norm: ops.rms_norm(x, norm, 1e-5, y),
            "silu_mul": lambda gate=gate, up=up: ops.silu_mul(gate, up, up),
            "add": lambda x=x, y=y: ops.add(x, y, y),
            "rope": lambda heads=heads, where=where, rotary=rotary: ops.rope(heads, where, rotary),
        }
        for name, record in cases.items():
            emit(op=name, rows=rows, us=round(best_s(ops, record, 0.1) * 1e6, 2))


def recurrent_lines(ops: NativeOps, bandwidth: float) -> None:
    """A delta-net layer of the 35 B mixture: its state is read and written once a decode row."""
    heads, width, layers = 32, 128, 8
    rule = DeltaRule(-torch.rand(heads), torch.randn(heads), heads // 2, heads, width, width)
    weight, norm = torch.randn(rule.channels, 4), torch.ones(width)
    past, states = torch.zeros(1, 3, rule.channels), [torch.zeros(1, heads, width, width) for _ in range(layers)]
    zero = torch.zeros(1, dtype=torch.int32)
    for rows in (1, 2, 64, 512):
        where = Rows(
            torch.arange(1, rows + 1, dtype=torch.int32), zero.repeat(rows), zero.repeat(rows), zero[None], zero
        )
        qkv, a, b = torch.randn(rows, rule.channels), torch.randn(rows, heads), torch.randn(rows, heads)
        mixed, x, gate = torch.empty_like(qkv), torch.empty(rows, heads, width), torch.randn(rows, heads, width)
        wide, scalar, total = torch.randn(rows, 2048), torch.randn(rows, 1), torch.zeros(rows, 2048)

        def all_layers(args: tuple = (qkv, a, b), where: Rows = where, out: torch.Tensor = x) -> None:
            for state in states:
                ops.delta_rule(*args, rule, state, where, out)

        seconds = best_s(ops, all_layers) / layers
        rate = 2 * states[0].nbytes / seconds
        emit(op="delta_rule", rows=rows, us=round(seconds * 1e6, 1), rows_s=round(rows / seconds),
             gop_s=round(7 * rows * states[0].numel() / seconds / 1e9, 1),
             state_gb_s=round(rate / 1e9, 2), state_share_of_copy=round(rate / bandwidth, 3))  # fmt: skip
        cases: dict[str, Callable[[], None]] = {
            "short_conv": lambda qkv=qkv, w=where, out=mixed: ops.short_conv(qkv, weight, past, w, out),
            "gated_norm": lambda x=x, gate=gate: ops.gated_norm(x, norm, gate, 1e-6, "silu", x),
            "sigmoid_mul": lambda x=x, gate=gate: ops.sigmoid_mul(x, gate, x),
            "add_scaled": lambda x=wide, gate=scalar, out=total: ops.add_scaled(x, gate, out),
        }
        for name, record in cases.items():
            emit(op=name, rows=rows, us=round(best_s(ops, record, 0.1) * 1e6, 2))


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa")
    parser.add_argument("--only", choices=("decode", "prefill", "attention", "small", "recurrent"))
    parser.add_argument("--types", default=",".join(TYPES), help="storage types of the products, with commas")
    options = parser.parse_args()
    kinds = options.types.split(",")
    ops = NativeOps(options.threads, options.isa)
    bandwidth = copy_bandwidth(options.threads)
    emit(op="copy", gb_s=round(bandwidth / 1e9, 2), threads=options.threads, isa=ops.isa)
    torch.set_num_threads(1)
    parts = {
        "decode": lambda: decode_lines(ops, bandwidth, kinds),
        "prefill": lambda: prefill_lines(ops, kinds),
        "attention": lambda: attention_lines(ops, bandwidth),
        "small": lambda: small_lines(ops),
        "recurrent": lambda: recurrent_lines(ops, bandwidth),
    }
    for name, part in parts.items():
        if options.only in (None, name):
            part()


if __name__ == "__main__":
    main()
