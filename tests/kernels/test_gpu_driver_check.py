"""The check of a driver: passes on the stand-in, and sees what a driver does wrong."""

from __future__ import annotations

import pytest

from strata_kernels.gpu.driver_check import CHECKS, check_driver
from tests.support.standin.kernels import open_standin

SIZE = 10_000


def failed(driver) -> dict[str, str]:
    return {check.name: check.text for check in check_driver(driver, SIZE) if not check.ok}


@pytest.mark.parametrize("kind", ["cuda", "hip", "musa"])
def test_a_sound_driver_passes_and_keeps_nothing(standin, kind):
    driver = open_standin(standin, kind)
    checks = check_driver(driver, SIZE)
    assert [check.name for check in checks] == list(CHECKS) and all(check.ok for check in checks)
    assert set(standin.live()) <= {"stream", "context"}
    assert "launched three times" in checks[2].text and "GB/s up" in checks[3].text


@pytest.mark.parametrize(
    ("call", "at", "name", "found"),
    [
        ("cuMemcpyHtoDAsync_v2", 1, "memory", "what was uploaded came back with"),
        ("cuMemcpyDtoDAsync_v2", 5, "order", "the last of five copies came back with 10,000 of 10,000 bytes wrong"),
        ("cuMemsetD8Async", 7, "graphs", "what graph launch 1 filled came back with"),
    ],
)
def test_work_that_is_not_done_is_seen(standin, call, at, name, found):
    driver = open_standin(standin)
    standin.skip(call, at)
    texts = failed(driver)
    assert list(texts) == [name] and found in texts[name]


def test_refused_graphs_are_said_and_are_no_failure(standin):
    driver = open_standin(standin)
    standin.fail("cuStreamBeginCapture_v2", 801)
    assert [check.text for check in check_driver(driver, SIZE) if check.name == "graphs"] == [
        "none: cuStreamBeginCapture_v2 failed with status 801 (stand-in status 801)"
    ]


def test_a_lost_device_ends_the_check(standin):
    driver = open_standin(standin)
    standin.fail("cuStreamSynchronize", 700)
    checks = check_driver(driver, SIZE)
    assert [(check.name, check.ok) for check in checks] == [("memory", False)]
    assert "start it again" in checks[0].text
