"""Both kinds of operations, and the table of measured errors: family x kind of file x operations x oracle."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strata_kernels.binding import KernelsUnavailable
from strata_kernels.native import NativeOps
from strata_kernels.ops import Ops
from strata_kernels.reference.ops import ReferenceOps

Measured = Callable[[str, str, str, str, float], float]
_KEY = "largest logit error"


@pytest.fixture(scope="module", params=["reference", "native"])
def ops(request: pytest.FixtureRequest) -> Ops:
    """Plain operations, then native ones where they are built."""
    if request.param == "reference":
        return ReferenceOps()
    try:
        return NativeOps(threads=2)
    except KernelsUnavailable as reason:
        pytest.skip(f"no native kernels here: {reason}")


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measured:
    """Notes (family, files, operations, oracle, error) for the table and hands the error back."""

    def note(family: str, files: str, operations: str, oracle: str, error: float) -> float:
        request.node.user_properties.append((_KEY, (family, files, operations, oracle, float(error))))
        return error

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the largest error of each row; nothing when no such test ran."""
    rows: dict[tuple[str, ...], list[float]] = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            for key, value in getattr(report, "user_properties", ()):
                if key == _KEY:
                    rows.setdefault(tuple(value[:4]), []).append(value[4])
    if not rows:
        return
    terminalreporter.section("largest logit error against the oracle")
    for (family, files, operations, oracle), errors in sorted(rows.items()):
        line = f"{family:17} {files:12} {operations:10} {oracle:13} {max(errors):.1e}  ({len(errors)} runs)"
        terminalreporter.write_line(line)
