"""`hw` and `doctor` on made-up trees of each device, compared with golden files."""

from __future__ import annotations

import pytest

from tests.support.gpu_golden import GOLDEN, MACHINES, verdict


@pytest.mark.parametrize("name", MACHINES)
def test_both_commands_say_what_the_golden_file_has(name, tmp_path):
    # after a wanted change: python -m tests.support.gpu_golden, and read the difference
    assert verdict(MACHINES[name], tmp_path) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_every_golden_file_has_its_machine():
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(MACHINES)
