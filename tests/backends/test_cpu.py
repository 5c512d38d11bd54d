"""The CPU device: what it may use, and the recorded choice of its operations."""

from __future__ import annotations

import pytest

from strata_backends import machine
from strata_backends.base import Profile
from strata_backends.cpu import CpuBackend
from strata_backends.probe import probe
from strata_kernels import registry
from strata_kernels.registry import Implementation, NoImplementation, Request, choose


def _choices(profile: Profile, isa: str | None = None) -> dict[str, tuple[str, str]]:
    chosen = CpuBackend(isa).ops(profile)
    return {choice.what: (choice.taken, choice.why) for choice in chosen.choices}


def test_native_kernels_are_taken_and_every_other_choice_is_recorded():
    chosen = CpuBackend().ops(Profile())
    taken = {choice.what: choice for choice in chosen.choices}
    assert chosen.ops.name == taken["kernels"].taken == "native"
    assert ("reference", "native comes first") in taken["kernels"].rejected
    names = {name for name, _ in taken["instruction set"].rejected} | {taken["instruction set"].taken}
    assert "generic" in names and all(reason for _, reason in taken["instruction set"].rejected)
    assert taken["threads"].taken == str(machine.usable_cores())
    assert taken["mode"].taken == "exact"


def test_the_reference_runs_when_asked_for():
    chosen = CpuBackend().ops(Profile(kernels="reference", threads=1))
    assert chosen.ops.name == "reference"
    assert _choices(Profile(kernels="reference", threads=1))["kernels"] == ("reference", "asked for")


def test_an_instruction_set_can_be_forced():
    assert _choices(Profile(threads=1), "generic")["instruction set"] == ("generic", "asked for")


def test_an_instruction_set_that_is_not_there_is_refused_with_the_reason():
    with pytest.raises(NoImplementation, match="no build 'mmx'"):
        CpuBackend("mmx").ops(Profile(kernels="native"))


def test_auto_says_why_it_fell_back():
    chosen = CpuBackend("mmx").ops(Profile(threads=1))
    kernels = chosen.choices[0]
    assert kernels.taken == "reference"
    assert kernels.rejected[0][0] == "native" and "mmx" in kernels.rejected[0][1]


@pytest.mark.parametrize("profile", [Profile(kernels="magic"), Profile(mode="sloppy"), Profile(threads=-1)])
def test_unknown_wishes_are_refused(profile):
    with pytest.raises(ValueError):
        CpuBackend().ops(profile)


@pytest.mark.parametrize(("kernels", "mode", "taken"), [
    ("native", "exact", "exact"), ("native", "fast", "fast"), ("reference", "fast", "exact"),
])  # fmt: skip
def test_the_mode_that_runs_is_recorded(kernels, mode, taken):
    assert _choices(Profile(kernels=kernels, mode=mode, threads=1))["mode"][0] == taken


def test_the_device_has_cores_memory_and_features():
    info = CpuBackend().info()
    assert info.cores >= 1 and 0 < info.free_bytes <= info.total_bytes
    assert info.arch and info.name


def test_probing_accepts_the_cpu_and_gives_a_reason_for_each_verdict():
    assert [(verdict.name, verdict.accepted) for verdict in probe()] == [("cpu", True)]
    assert [(verdict.name, verdict.accepted) for verdict in probe("cpu")] == [("cpu", True)]
    with pytest.raises(ValueError, match="quantum"):
        probe("quantum")


def test_nothing_usable_lists_every_reason():
    candidates = (Implementation("a", "m", lambda request: "broken", registry.IMPLEMENTATIONS[1].make),)
    with pytest.raises(NoImplementation, match="a: broken"):
        choose("auto", Request(), candidates)


def _cpu_tree(root, siblings):
    for cpu, text in siblings.items():
        folder = root / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "core_cpus_list").write_text(text + "\n")


def test_hyper_threads_count_as_one_core(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "allowed_cpus", lambda: [0, 1, 2, 3])
    _cpu_tree(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert machine.usable_cores(tmp_path, tmp_path / "no-group") == 2


@pytest.mark.parametrize(
    ("quota", "cores"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 4), ("junk", 4)]
)
def test_a_control_group_quota_limits_the_cores(tmp_path, monkeypatch, quota, cores):
    monkeypatch.setattr(machine, "allowed_cpus", lambda: [0, 1, 2, 3])
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert machine.usable_cores(tmp_path / "no-cpus", tmp_path) == cores


def test_an_old_control_group_quota_is_read_too(tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("300000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert machine.quota_cpus(tmp_path) == 3


def test_a_control_group_limits_the_memory(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 1000 kB\nMemAvailable: 800 kB\n")
    assert machine.memory_bytes(tmp_path, meminfo) == (1024000, 819200)
    (tmp_path / "memory.max").write_text("500000\n")
    (tmp_path / "memory.current").write_text("200000\n")
    assert machine.memory_bytes(tmp_path, meminfo) == (500000, 300000)
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.memory_bytes(tmp_path, meminfo) == (1024000, 819200)
