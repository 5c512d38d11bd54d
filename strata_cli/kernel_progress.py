"""Shows how far kernels are built: a bar on a terminal, a line now and then elsewhere, JSON lines where asked for.

Everything goes to stderr but the JSON lines. Reports come from several threads, one at a time.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from strata_cli.output import Output
from strata_cli.progress import is_terminal

if TYPE_CHECKING:
    from strata_kernels.gpu.compile import Outcome

_LINE_EVERY_S = 5.0


class KernelProgress:
    """A report for ensure_kernels, and a context manager that ends the bar. One for each device."""

    def __init__(self, output: Output, arch: str) -> None:
        self._output, self._arch = output, arch
        self._last = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        if output.mode == "text" and not output.quiet and is_terminal(output) and sys.stderr is output.stderr:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns: list[Any] = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()]
            console = Console(file=output.stderr, highlight=False, markup=False, emoji=False)
            self._bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)

    def __enter__(self) -> KernelProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, outcome: Outcome, done: int, total: int) -> None:
        """One kernel is done."""
        if self._output.mode == "jsonl":
            self._line(outcome, done, total)
        elif self._bar is not None:
            self._draw(done, total)
        elif self._output.mode == "text" and time.monotonic() - self._last >= _LINE_EVERY_S:
            self._last = time.monotonic()
            self._output.note(f"{self._arch}: {done} of {total} kernels")
        if self._bar is None:
            self._output.detail(f"{self._arch}: {outcome.state} {outcome.variant.key} {outcome.seconds:.1f} s")

    def _draw(self, done: int, total: int) -> None:
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task(f"kernels for {self._arch}", total=total)
        self._bar.update(self._task, completed=done)

    def _line(self, outcome: Outcome, done: int, total: int) -> None:
        event = {"schema": "llmrun.kernels_event.v1", "arch": self._arch, "kernel": outcome.variant.key,
                 "state": outcome.state, "seconds": round(outcome.seconds, 3), "done": done,
                 "total": total}  # fmt: skip
        self._output.stdout.write(json.dumps(event) + "\n")
        self._output.stdout.flush()
