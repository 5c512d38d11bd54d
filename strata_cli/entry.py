"""Where the program starts. Ctrl-C ends it silently while the rest is still being imported, and again at exit."""

from __future__ import annotations

import os
import signal

_INTERRUPTED = 130
# A shell starts background jobs with SIGINT ignored; that stays so.
_OURS = signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _leave(number: int, frame: object) -> None:
    os._exit(_INTERRUPTED)  # nothing has been started yet, or all has been closed and written out


if _OURS:
    signal.signal(signal.SIGINT, _leave)


def main() -> int:
    """Run the command of sys.argv; returns the exit code."""
    from strata_cli.main import main as run

    try:
        if _OURS:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        if _OURS:
            signal.signal(signal.SIGINT, _leave)
