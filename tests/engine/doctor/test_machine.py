"""Checks of the machine: what is a warning, what a failure, and what the user is told to do."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from strata_backends.sysfs import CpuSeen
from strata_engine.doctor import machine
from strata_engine.doctor.check import Check, exit_code


def test_no_failure_ends_with_0_and_warnings_do_not_count():
    assert exit_code([Check("a", "ok", ""), Check("b", "warn", ""), Check("c", "skip", "")]) == 0


def test_a_failure_of_the_device_ends_with_8_and_any_other_with_10():
    other, device = Check("a", "fail", ""), Check("b", "fail", "", device=True)
    assert exit_code([other]) == 10
    assert exit_code([other, device]) == 8


def test_this_python_passes():
    assert machine.check_python().status == "ok"


@pytest.mark.parametrize(("free_bytes", "status"), [(8 * 10**9, "ok"), (10**8, "warn")])
def test_little_free_memory_is_a_warning(free_bytes, status):
    assert machine.check_memory(16 * 10**9, free_bytes).status == status


@pytest.mark.parametrize(("free_bytes", "status"), [(10**11, "ok"), (10**9, "warn"), (10**6, "fail")])
def test_a_filling_disk_warns_and_a_full_one_fails(tmp_path, monkeypatch, free_bytes, status):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=free_bytes))
    disk, store = machine.check_store(tmp_path / "not/yet/there")
    assert (disk.status, store.status) == (status, "ok")
    assert bool(disk.remedy) == (status != "ok")
    assert list(tmp_path.iterdir()) == []


def test_a_store_below_a_file_fails_with_a_remedy(tmp_path):
    (tmp_path / "file").touch()
    store = machine.check_store(tmp_path / "file/models")[1]
    assert store.status == "fail" and "LLMRUN_HOME" in store.remedy


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_store_without_rights_fails(tmp_path):
    tmp_path.chmod(0o500)
    assert machine.check_store(tmp_path / "models")[1].status == "fail"


def test_the_nearest_existing_parent_is_found(tmp_path):
    assert machine.nearest_existing(tmp_path / "a/b") == tmp_path


def cpu(*features: str, arch: str = "x86_64") -> CpuSeen:
    return CpuSeen("Test", arch, 4, 4, 8, features=features)


def test_an_old_x86_processor_is_a_warning_and_others_are_not():
    assert machine.check_processor(cpu("sse4_2")).status == "warn"
    assert machine.check_processor(cpu("avx2")).status == "ok"
    assert machine.check_processor(cpu("asimd", arch="aarch64")).status == "ok"


def test_the_root_directory_is_its_own_nearest_parent():
    assert machine.nearest_existing(Path("/")) == Path("/")
