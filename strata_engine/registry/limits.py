"""Waiting: between tries, and to stay under a rate. Every wait ends at once when the transfer stops."""

from __future__ import annotations

import errno
import random
import threading
import time
from dataclasses import dataclass

_NO_SPACE = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


def disk_full(error: OSError) -> bool:
    """Whether the system says that there is no room."""
    return error.errno in _NO_SPACE


@dataclass(frozen=True)
class Patience:
    """Tries without any progress before giving up, and the waits between them (doubling, with jitter)."""

    tries: int = 5
    first_wait_s: float = 0.5
    longest_wait_s: float = 15.0
    longest_asked_s: float = 120.0  # a Retry-After above this ends the transfer

    def wait_s(self, failures: int, asked_s: float) -> float:
        """How long to wait after this many failures in a row."""
        backoff = min(self.longest_wait_s, self.first_wait_s * 2 ** (failures - 1))
        return max(asked_s, backoff * random.uniform(0.8, 1.2))


class RateLimit:
    """At most `rate` bytes a second over all threads; 0 = no limit."""

    def __init__(self, rate: float, stop: threading.Event) -> None:
        self._rate, self._stop = rate, stop
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    def take(self, count: int) -> None:
        """Wait until `count` bytes may pass."""
        if self._rate <= 0:
            return
        with self._lock:
            now = time.monotonic()
            start = max(now, self._free_at)
            self._free_at = start + count / self._rate
        if start > now:
            self._stop.wait(start - now)
