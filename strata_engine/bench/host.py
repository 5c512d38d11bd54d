"""Facts about this machine and program for a result file, and the limits that speeds are compared with."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from strata_kernels.ops import Ops, Weight

_BUFFER_BYTES = 1 << 28  # far above any cache that two cores can use
_LEAST_PASSES, _LEAST_S = 5, 0.7
_PRODUCT = (256, 512, 2048)  # rows, outputs, inputs


def machine() -> dict[str, Any]:
    """CPU, cores, memory, system."""
    import psutil

    return {
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        "logical_cores": psutil.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Hardware")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions(program: str) -> dict[str, str]:
    """Versions of what decides speed."""
    return {
        "llmrun": program,
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "numpy": importlib.metadata.version("numpy"),
    }


def commit() -> str:
    """The checkout's commit, with + for changed files; "" outside a checkout of ours."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    try:
        base = ["git", "-C", str(root)]
        head = subprocess.run([*base, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
        changed = subprocess.run([*base, "diff", "--quiet", "HEAD"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return head.stdout.strip() + ("+" if changed.returncode else "")


def read_bandwidth_gb_s(threads: int) -> float:
    """Fastest of several reads of a buffer that no cache holds, in 10^9 bytes a second, by `threads` threads."""
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    # The largest of 8-bit numbers costs the fewest instructions a byte of numpy's reductions; they release the lock.
    buffer = np.ones(_BUFFER_BYTES, np.uint8)
    parts = np.array_split(buffer, threads)
    best, passes, begun = 0.0, 0, time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        while passes < _LEAST_PASSES or time.perf_counter() - begun < _LEAST_S:
            started = time.perf_counter()
            list(pool.map(np.max, parts))
            best = max(best, buffer.nbytes / max(time.perf_counter() - started, 1e-9))
            passes += 1
    return best / 1e9


def product_gop_s(ops: Ops) -> float:
    """Fastest packed matrix product of these ops, in 10^9 multiplications and additions a second.

    Weights of 4 bits, shapes whose pieces fit a second-level cache: what a prompt could reach if it were only products.
    """
    import numpy as np

    rows, outputs, inputs = _PRODUCT
    data = np.random.default_rng(1).integers(0, 60, (outputs, inputs // 32 * 18), np.uint8)
    x = np.random.default_rng(2).normal(size=(rows, inputs)).astype(np.float32)
    with ops.scope():
        weight = ops.pack(Weight("Q4_0", outputs, inputs, ops.constant(data)))
        inside, out = ops.constant(x), ops.take(rows, outputs)
        ops.begin()
        ops.linear(inside, [weight], [out])
        step = ops.end()
        best, passes, begun = 0.0, 0, time.perf_counter()
        while passes < _LEAST_PASSES or time.perf_counter() - begun < _LEAST_S:
            started = time.perf_counter()
            step.run()
            best = max(best, 2 * rows * outputs * inputs / max(time.perf_counter() - started, 1e-9))
            passes += 1
    return best / 1e9
