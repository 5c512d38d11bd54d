"""What one check says, and what all of them together mean for the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OK, WARN, FAIL, SKIP = "ok", "warn", "fail", "skip"


@dataclass(frozen=True)
class Check:
    """`remedy`: what to do when it is not ok. `device`: a failure is about the device (exit 8, others 10)."""

    name: str
    status: str
    text: str
    remedy: str = ""
    device: bool = False


def exit_code(checks: Sequence[Check]) -> int:
    """0 without a failure, 8 when a device check failed, 10 when only others did."""
    failed = [check for check in checks if check.status == FAIL]
    if any(check.device for check in failed):
        return 8
    return 10 if failed else 0
