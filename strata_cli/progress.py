"""Shows a download: bars on a terminal, a plain line now and then elsewhere, JSON lines where they are asked for.

Everything goes to stderr but the JSON lines. Reports come from several threads.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from strata_cli.output import Output, clean
from strata_engine.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from strata_engine.registry.progress import Progress

_LINE_EVERY_S, _JSON_EVERY_S = 5.0, 0.25
_COUNTS = ("download", "verify", "waiting")
_WORDS = {"download": "", "verify": "checking ", "waiting": "waiting for "}


class PullProgress:
    """A report for the registry, and a context manager that ends the bars."""

    def __init__(self, output: Output, terminal: bool) -> None:
        self.output = output
        self._lock = threading.Lock()
        self._spans: dict[tuple[str, str], tuple[int, int]] = {}  # file -> bytes at the start and now
        self._view: _View = _NoView()
        if output.mode == "jsonl":
            self._view = _JsonLines(output)
        elif not output.quiet and output.mode == "text":
            self._view = _Bars(output) if terminal else _Lines(output)

    def __enter__(self) -> PullProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._view.end()

    def __call__(self, progress: Progress) -> None:
        """Show one event."""
        with self._lock:
            if progress.event == "download":
                key = (progress.model, progress.file)
                start, _ = self._spans.get(key, (progress.done_bytes, 0))
                self._spans[key] = (start, progress.done_bytes)
            self._view.show(progress)

    @property
    def downloaded_bytes(self) -> int:
        """Bytes that came over the network, all files together."""
        return sum(max(0, now - start) for start, now in self._spans.values())


def is_terminal(output: Output) -> bool:
    """Whether bars make sense on stderr: a real terminal that may show colour."""
    return output.colour and output.stderr.isatty()


def notice_of(progress: Progress) -> str:
    """The line for an event that is said once; "" for events that are counted or not said."""
    name, message = progress.file or progress.model, progress.message
    if progress.event == "source":
        return f"{progress.model}: from {message}"
    if progress.event == "switch":
        return f"{message}; trying the next source"
    if progress.event in ("retry", "restart"):
        return message if message.startswith(name) else f"{name}: {message}"
    return ""


class _View:
    def show(self, progress: Progress) -> None:
        """One event."""

    def end(self) -> None:
        """No more events."""


class _NoView(_View):
    """--quiet, --json."""


class _JsonLines(_View):
    def __init__(self, output: Output) -> None:
        self.output, self._last = output, 0.0

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.event in _COUNTS and progress.done_bytes < progress.total_bytes:
            if now - self._last < _JSON_EVERY_S:
                return
            self._last = now
        line = {"schema": "llmrun.pull_event.v1", **{k: v for k, v in asdict(progress).items() if v != ""}}
        self.output.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
        self.output.stdout.flush()


class _Lines(_View):
    def __init__(self, output: Output) -> None:
        self.output = output
        self._since: dict[str, tuple[float, int]] = {}
        self._last = time.monotonic()

    def show(self, progress: Progress) -> None:
        if text := notice_of(progress):
            self.output.note(text)
        elif progress.event == "waiting" and progress.event + progress.file not in self._since:
            self.output.note(f"{progress.file}: {progress.message}; waiting for it")
            self._count(progress)
        elif progress.event == "start":
            size = f" ({format_bytes(progress.total_bytes)})" if progress.total_bytes else ""
            self.output.note(f"downloading {progress.file}{size}")
        elif progress.event in _COUNTS:
            self._count(progress)

    def _count(self, progress: Progress) -> None:
        now = time.monotonic()
        began, first = self._since.setdefault(progress.event + progress.file, (now, progress.done_bytes))
        if now - self._last < _LINE_EVERY_S:
            return
        self._last = now
        rate = (progress.done_bytes - first) / (now - began) if now > began else 0.0
        self.output.note(f"{_WORDS[progress.event]}{progress.file}: {amount(progress, rate)}")


def amount(progress: Progress, rate: float) -> str:
    """45 % of 98.4 MB, 21 MB/s, 3 s left."""
    parts = [format_bytes(progress.done_bytes)]
    if progress.total_bytes:
        share = 100 * progress.done_bytes / progress.total_bytes
        parts = [f"{share:.0f} % of {format_bytes(progress.total_bytes)}"]
    if rate > 0:
        parts.append(f"{format_bytes(rate)}/s")
        if progress.total_bytes:
            parts.append(f"{format_seconds((progress.total_bytes - progress.done_bytes) / rate)} left")
    return ", ".join(parts)


class _Bars(_View):
    def __init__(self, output: Output) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        console = Console(file=output.stderr, highlight=False, markup=False, emoji=False)
        columns: list[Any] = [TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(),
                              TransferSpeedColumn(), TimeRemainingColumn()]  # fmt: skip
        self._bars = Progress(*columns, console=console, transient=True)
        self._tasks: dict[str, Any] = {}

    def show(self, progress: Progress) -> None:
        if text := notice_of(progress):
            self._bars.console.print(clean(text), soft_wrap=True)
        elif progress.event in _COUNTS:
            self._count(progress)
        elif progress.event == "done":
            for key in [k for k in self._tasks if k.endswith(progress.file)]:
                self._bars.remove_task(self._tasks.pop(key))

    def _count(self, progress: Progress) -> None:
        if not self._bars.live.is_started:
            self._bars.start()
        key = progress.event + progress.file
        total = progress.total_bytes or None
        if key not in self._tasks:
            for old in [k for k in self._tasks if k.endswith(progress.file)]:
                self._bars.remove_task(self._tasks.pop(old))
            name = clean(_WORDS[progress.event] + progress.file)
            self._tasks[key] = self._bars.add_task(name, total=total, completed=progress.done_bytes)
        self._bars.update(self._tasks[key], completed=progress.done_bytes, total=total)

    def end(self) -> None:
        if self._bars.live.is_started:
            self._bars.stop()


def show_pull(output: Output) -> PullProgress:
    """The right view for this output and terminal."""
    return PullProgress(output, is_terminal(output) and sys.stderr is output.stderr)
