"""Ahead-of-time compiles: what is there stays, what is missing or damaged is built, faults are told. No device."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strata_kernels.gpu import compile as building
from strata_kernels.gpu.bundle import Store, elf_marks
from strata_kernels.gpu.compile import BuildFailed, CompilerMissing, Outcome, Worker, ensure_kernels
from strata_kernels.gpu.launch import Variant
from strata_kernels.gpu.targets import GATE, TARGETS

ADD = Variant("add", ("*fp32", "*fp32", "*fp32", "i32"), (("BLOCK", 256),))
WRONG = Variant("add", ("*fp32", "*fp32", "*fp32", "i32"), (("BLOCK", 300),))  # no power of two


def test_builds_what_is_missing_and_mends_what_is_damaged(tmp_path: Path) -> None:
    told: list[tuple[Outcome, int, int]] = []
    first = ensure_kernels([ADD, ADD], "gfx1100", tmp_path, lambda *what: told.append(what), jobs=2)
    assert [(one.state, one.why) for one in first] == [("built", "missing")]
    assert [what[1:] for what in told] == [(1, 1)]
    store = Store(tmp_path, "gfx1100")
    entry = store.load(ADD)
    assert entry is not None and entry == first[0].entry
    assert elf_marks(entry.code)[1] & 0xFF == 0x41
    assert (entry.symbol, entry.threads, entry.figures["spills"]) == ("add", 128, 0)
    path = store.path(ADD)
    path.write_bytes(path.read_bytes()[:-1])
    again = ensure_kernels([ADD], "gfx1100", tmp_path, jobs=1)
    assert again[0].state == "built" and again[0].why.startswith("damaged")
    assert store.load(ADD) == entry  # the same sources give the same code, byte for byte


def test_nothing_is_started_where_nothing_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.gpu_kernels import entry_for

    Store(tmp_path, "sm_90").put(entry_for(ADD, "sm_90"))
    monkeypatch.setattr(building, "require_compiler", lambda target: pytest.fail("nothing must be compiled"))
    assert [one.state for one in ensure_kernels([ADD], "sm_90", tmp_path)] == ["present"]


def test_a_kernel_that_does_not_compile_is_named_and_others_are_built(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="1 of 2 kernels") as caught:
        ensure_kernels([WRONG, ADD], "gfx1201", tmp_path, jobs=1)
    states = {one.variant: one.state for one in caught.value.outcomes}
    assert states == {WRONG: "failed", ADD: "built"}
    assert WRONG.key in str(caught.value) and "power of 2" in str(caught.value)


def test_without_the_compiler_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "find_spec", lambda name: None)
    with pytest.raises(CompilerMissing, match="not installed") as caught:
        ensure_kernels([ADD], "gfx1100", tmp_path)
    assert caught.value.hint == "pip install 'strata-llmrun[gpu]'"


def test_m1000_is_compiled_on_the_device_only(tmp_path: Path) -> None:
    with pytest.raises(CompilerMissing, match="vendor's Triton") as caught:
        ensure_kernels([ADD], "mp_22", tmp_path)
    assert "3.2.0" in caught.value.hint


def test_a_compiler_that_dies_is_an_error_of_one_kernel(tmp_path: Path) -> None:
    worker = Worker(str(tmp_path))
    try:
        os.kill(worker.pid, 9)
        answer = worker.ask(ADD, TARGETS["gfx1100"])
    finally:
        worker.close()
    assert "ended with -9" in answer["error"] and not worker.alive


def test_a_kernel_that_wants_too_much_local_memory_or_other_values_is_refused(tmp_path: Path) -> None:
    worker = Worker(str(tmp_path))
    try:
        short = worker.ask(Variant("add", ADD.types[:-1], ADD.constants), GATE)
        strange = worker.ask(Variant("add", ADD.types, (*ADD.constants, ("WIDTH", 1))), GATE)
    finally:
        worker.close()
    assert "no value for count" in short["error"] and "no parameters for ['WIDTH']" in strange["error"]
