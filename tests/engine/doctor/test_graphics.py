"""Checks of the GPUs: what is a warning, and what to do. Whole machines: tests/cli/test_gpu_golden.py."""

from __future__ import annotations

from strata_backends.gpu import Fault, GpuSeen
from strata_engine.doctor.check import exit_code
from strata_engine.doctor.graphics import check_graphics

RIGHTS = Fault("no rights on /dev/kfd", "sudo usermod -aG render $USER, then log in again")


def test_no_gpu_is_fine_and_says_what_runs_models():
    [check] = check_graphics([], {}, True)
    assert check.status == "ok" and "processor" in check.text


def test_a_fault_is_one_warning_with_its_remedy_and_never_a_failure():
    [check] = check_graphics([GpuSeen("hip", "AMD", "Card", arch="gfx1100", faults=(RIGHTS,))], {}, True)
    assert (check.status, check.text) == ("warn", "hip:0 AMD Card (gfx1100): no rights on /dev/kfd")
    assert check.remedy == RIGHTS.remedy and exit_code([check]) == 0


def test_a_version_without_gpu_operations_says_so_of_a_good_card():
    card = GpuSeen("hip", "AMD", "Card")
    assert check_graphics([card], {}, True)[0].text == "hip:0 AMD Card"
    assert "runs models on the processor" in check_graphics([card], {}, False)[0].text


def test_a_variable_is_shown_once_by_the_fault_it_makes_or_by_itself():
    hidden = Fault("hidden by HIP_VISIBLE_DEVICES=1", "unset HIP_VISIBLE_DEVICES")
    card = GpuSeen("hip", "AMD", "Card", None, faults=(hidden,))
    given = {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}
    texts = [check.text for check in check_graphics([card], given, True)]
    assert texts == ["hip AMD Card: hidden by HIP_VISIBLE_DEVICES=1",
                     "set in the environment: CUDA_VISIBLE_DEVICES=0"]  # fmt: skip
