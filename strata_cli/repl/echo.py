"""Keys pressed while an answer streams: not shown in the middle of it, but kept for the next prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def keys_unseen(stream: TextIO | None = None) -> Iterator[None]:
    """Switch the terminal's echo off inside; Ctrl-C still works. Nothing happens where `stream` is no terminal."""
    try:
        import termios
    except ImportError:  # Windows: the console echoes only what is read
        yield
        return
    try:
        fd = (stream or sys.stdin).fileno()
        before = termios.tcgetattr(fd)
    except (OSError, ValueError, termios.error):
        yield
        return
    # without NOFLSH the terminal throws away what was typed ahead when Ctrl-C comes
    quiet = [*before[:3], (before[3] & ~termios.ECHO) | termios.NOFLSH, *before[4:]]
    try:
        termios.tcsetattr(fd, termios.TCSANOW, quiet)  # not TCSAFLUSH: what was typed ahead stays
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)
