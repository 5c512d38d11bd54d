"""Compiles all GPU kernels, without a GPU, and looks at the machine code: limits of limits.py, and docs/gpu-kernels.md.

    python -m benches.gpu_code                 # compile, print the table, end with 1 where a limit is broken
    python -m benches.gpu_code --write         # also rewrite the table of docs/gpu-kernels.md
    python -m benches.gpu_code --check         # end with 1 where the table of docs/gpu-kernels.md is not today's
    python -m benches.gpu_code --gate DIR      # compile with the triton 3.2.0 that pip put into DIR, for sm_80

The variants are those of a model of each kind (by config alone) and a product of each storage type.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from strata_kernels.gpu.compile import Worker, usable_cores
from strata_kernels.gpu.launch import Variant
from strata_kernels.gpu.limits import faults, vectors_per_weight
from strata_kernels.gpu.targets import GATE, Target, find_targets
from tests.support.gpu_gallery import gallery

PAGE = Path(__file__).parents[1] / "docs" / "gpu-kernels.md"
BEGIN, END = "<!-- made by benches/gpu_code.py --write -->", "<!-- end -->"


@dataclass(frozen=True)
class Row:
    """A variant compiled for a target, or why it was not."""

    variant: Variant
    target: Target
    shared: int = 0
    figures: dict[str, Any] | None = None
    error: str = ""

    @property
    def faults(self) -> list[str]:
        if self.figures is None:
            return [self.error.splitlines()[-1] if self.error else "not compiled"]
        return faults(self.variant, self.target, self.shared, self.figures)


def compile_all(variants: Sequence[Variant], targets: Sequence[Target], path: Sequence[str] = ()) -> list[Row]:
    """Every variant for every target, in that order; `path` as Worker takes it."""
    waiting: SimpleQueue[tuple[int, Variant, Target]] = SimpleQueue()
    pairs = [(variant, target) for target in targets for variant in variants]
    for number, (variant, target) in enumerate(pairs):
        waiting.put((number, variant, target))
    rows: dict[int, Row] = {}

    def work(cache: str) -> None:
        worker = Worker(cache, path)
        try:
            while worker.alive:
                try:
                    number, variant, target = waiting.get_nowait()
                except Empty:
                    return
                answer = worker.ask(variant, target, loops=not path)
                if not worker.alive:  # the next one gets a compiler of its own
                    worker.close()
                    worker = Worker(cache, path)
                error = answer.get("error", "")
                rows[number] = Row(variant, target, answer.get("shared", 0), answer.get("figures"), error)
        finally:
            worker.close()

    jobs = min(usable_cores(), len(pairs))
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(jobs) as threads:
        for done in [threads.submit(work, cache) for _ in range(jobs)]:
            done.result()
    return [rows[number] for number in range(len(pairs))]


def table(rows: Sequence[Row]) -> str:
    """One line a kernel and target: the worst of its variants."""
    heads = ("kernel", "device", "variants", "registers", "spills", "local memory", "matrix instructions",
             "vector operations a weight")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.variant.kernel, row.target.arch), []).append(row)
    for (kernel, arch), some in sorted(groups.items()):
        known = [row for row in some if row.figures is not None]
        costs = [c for r in known if (c := vectors_per_weight(r.variant, r.target, r.figures or {})) is not None]
        cells = (
            kernel,
            arch,
            f"{len(some)}",
            _most(known, "vgprs"),
            _most(known, "spills"),
            str(max((row.shared for row in known), default=0)),
            _span([row.figures.get("matrix", 0) for row in known if row.figures]),
            f"{min(costs):.1f} to {max(costs):.1f}" if costs else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _most(rows: Sequence[Row], name: str) -> str:
    return str(max((row.figures.get(name, 0) for row in rows if row.figures), default=0))


def _span(counts: Sequence[int]) -> str:
    if not counts or not max(counts):
        return ""
    return str(max(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def page(text: str, made: str) -> str:
    """The page with its table replaced. Raises ValueError when it has no place for one."""
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"{PAGE} has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--gate", metavar="DIR")
    parser.add_argument("--only", default="", help="kernels whose name holds this")
    parser.add_argument("--arch", default="all")
    given = parser.parse_args(argv)
    variants = [variant for variant in gallery() if given.only in variant.kernel]
    if given.gate:
        rows = compile_all(variants, [GATE], [given.gate])
        bad = [row for row in rows if row.figures is None]
    else:
        rows = compile_all(variants, find_targets(given.arch.split(",")))
        bad = [row for row in rows if row.faults]
        print(table(rows))
    for row in bad:
        print(f"{row.target.arch} {row.variant.key}: {'; '.join(row.faults)}", file=sys.stderr)
    print(f"{len(variants)} variants, {len(rows)} compiles, {len(bad)} at fault", file=sys.stderr)
    stale = False
    if given.write or given.check:
        text = PAGE.read_text(encoding="utf-8")
        made = page(text, table(rows))
        stale = given.check and made != text
        if given.write:
            PAGE.write_text(made, encoding="utf-8")
    if stale:
        print(f"{PAGE.name} is stale: python -m benches.gpu_code --write", file=sys.stderr)
    return int(bool(bad) or stale)


if __name__ == "__main__":
    sys.exit(main())
