"""Choosing a device: which one, why not the others, and that the processor runs when no card can."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strata_backends.base import ChosenOps, Profile
from strata_backends.gpu import Place
from strata_backends.names import parse_device
from strata_backends.probe import choose, probe
from tests.support import machine_trees as trees
from tests.support.machine_trees import Machine, amd

BUILT = ("gfx1100", "gfx1201")


def place(root: Path, machine: Machine, ready: bool = True) -> Place:
    def make_ops(card, profile: Profile) -> ChosenOps:
        raise RuntimeError(f"asked for {card.label} {profile.mode}")

    return replace(replace(machine, built=BUILT).place(root), make_ops=make_ops if ready else None)


@pytest.mark.parametrize(("text", "parsed"), [("auto", ("auto", 0)), ("cpu", ("cpu", 0)), ("hip:1", ("hip", 1))])
def test_a_device_is_a_kind_and_a_number(text, parsed):
    assert parse_device(text) == parsed


@pytest.mark.parametrize("text", ["quantum", "", "cpu:0", "auto:1", "hip:", "hip:x", "hip:0001", "HIP"])
def test_anything_else_is_refused_with_the_list(text):
    with pytest.raises(ValueError, match="auto, cpu, cuda, hip, musa"):
        parse_device(text)


def test_a_usable_card_comes_before_the_processor(tmp_path):
    backend, verdicts = choose("auto", place(tmp_path, amd(trees.RX_7900_XTX)))
    assert [(v.name, v.accepted) for v in verdicts] == [("hip:0", True), ("cpu", True)]
    assert backend is not None and backend.device == "hip:0" and backend.name == "hip"
    info = backend.info()
    assert (info.arch, info.total_bytes, info.free_bytes) == ("gfx1100", 25753026560, 25753026560 - 27979776)
    assert "#30245" in info.known_faults[0]
    with pytest.raises(RuntimeError, match="asked for hip:0 exact"):
        backend.ops(Profile())


def test_a_version_without_gpu_operations_takes_the_processor_and_says_why(tmp_path):
    backend, verdicts = choose("auto", place(tmp_path, amd(trees.RX_7900_XTX), ready=False))
    assert backend is not None and backend.name == "cpu"
    assert verdicts[0].reason == "this version computes on the processor only"
    first = backend.ops(Profile(threads=1)).choices[0]
    assert first.what == "processor or GPU" and "not hip:0: this version" in first.why


def test_a_card_asked_for_by_number_is_taken_and_the_others_are_not(tmp_path):
    backend, verdicts = choose("hip:1", place(tmp_path, amd(trees.RX_7900_XTX, trees.RX_9070_XT)))
    assert backend is not None and (backend.device, backend.info().arch) == ("hip:1", "gfx1201")
    assert [(v.name, v.accepted, v.reason) for v in verdicts if not v.accepted] == [
        ("hip:0", False, "hip:1 was asked for"), ("cpu", False, "hip:1 was asked for")]  # fmt: skip


def test_a_kind_alone_means_its_first_card(tmp_path):
    backend, _ = choose("hip", place(tmp_path, amd(trees.RX_7900_XTX, trees.RX_9070_XT)))
    assert backend is not None and backend.device == "hip:0"


def test_a_card_that_cannot_be_used_is_refused_with_its_fault_and_remedy(tmp_path):
    machine = replace(amd(trees.RX_7900_XTX), denied=("dev/kfd",))
    backend, verdicts = choose("hip", place(tmp_path, machine))
    assert backend is None
    assert (verdicts[0].reason, verdicts[0].remedy[:12]) == ("no rights on /dev/kfd", "sudo usermod")
    assert choose("auto", place(tmp_path, machine))[0] is not None  # the processor


def test_a_card_that_is_not_there_says_which_are(tmp_path):
    two = place(tmp_path / "a", amd(trees.W7900, trees.W7900))
    assert "only hip:0, hip:1" in next(v.reason for v in probe("hip:7", two) if v.name == "hip:7")
    verdicts = probe("cuda", two)
    assert [(v.name, v.reason) for v in verdicts if not v.accepted][0] == ("cuda:0", "no card of kind cuda is there")


def test_the_processor_asked_for_looks_at_no_card(tmp_path):
    assert [v.name for v in probe("cpu", place(tmp_path, amd(trees.W7900)))] == ["cpu"]
