"""Log of one run: warnings to stderr, more with -v and --debug, a file with --log-file. Libraries add no handlers."""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING

from strata_engine.errors import UsageError

if TYPE_CHECKING:
    from strata_cli.app import App

_OURS = ("strata_cli", "strata_engine", "strata_backends", "strata_kernels")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {"time": round(record.created, 3), "level": record.levelname.lower(), "name": record.name,
                 "message": record.getMessage()}  # fmt: skip
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(app: App) -> None:
    """Install the one handler. Raises UsageError when the log file cannot be opened."""
    flags = app.flags
    level = _level(app)
    handler = _handler(flags.log_file)
    text = (
        "%(asctime)s %(levelname)s %(name)s: %(message)s" if flags.log_file else "%(levelname)s %(name)s: %(message)s"
    )
    handler.setFormatter(_JsonLines() if flags.log_format == "json" else logging.Formatter(text))
    root = logging.getLogger()
    for old in [h for h in root.handlers if getattr(h, "of_llmrun", False)]:
        root.removeHandler(old)
        old.close()
    handler.of_llmrun = True  # type: ignore[attr-defined]  # so that a second run in one process replaces it
    root.addHandler(handler)
    for name in _OURS:  # other libraries stay at warnings: their info lines are per request
        logging.getLogger(name).setLevel(level)


def _level(app: App) -> int:
    if app.debug or app.flags.verbose > 1:
        return logging.DEBUG
    if app.flags.verbose or app.flags.log_file:
        return logging.INFO
    return logging.ERROR if app.flags.quiet else logging.WARNING


def _handler(file: str | None) -> logging.Handler:
    if file is None:
        return logging.StreamHandler(sys.stderr)
    try:
        return logging.FileHandler(file, encoding="utf-8", delay=False)
    except OSError as error:
        raise UsageError(f"--log-file {file}: {error.strerror}") from error
