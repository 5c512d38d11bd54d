"""--device as a user gives it: unknown names end with 2, known devices that cannot be used with 8 and the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strata_cli.globals import GlobalFlags, split
from strata_cli.local import open_backend
from strata_cli.settings import load_settings
from strata_engine.env import Env
from strata_engine.errors import DeviceError, UsageError
from tests.support import machine_trees as trees
from tests.support.command import call, values
from tests.support.machine_trees import Machine, amd

TOY = str(Path(__file__).resolve().parents[1] / "fixtures/toy")


@pytest.mark.parametrize("args", [["--device", "quantum"], ["--device=hip:x"], ["--device", ""]])
def test_an_unknown_device_ends_with_2_and_the_list(tmp_path, args):
    done = call([*args, "fit", TOY], values(tmp_path))
    assert done.code == 2 and "auto, cpu, cuda, hip, musa" in done.err


def test_an_unknown_device_of_the_environment_is_named_with_its_variable(tmp_path):
    done = call(["fit", TOY], {**values(tmp_path), "LLMRUN_DEVICE": "tpu"})
    assert done.code == 2 and "LLMRUN_DEVICE" in done.err


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "hip:1", "musa:0"])
def test_every_known_device_is_a_setting(tmp_path, device):
    flags, rest = split(["--device", device, "x"])
    env = Env({"HOME": str(tmp_path)})
    assert rest == ["x"] and load_settings(flags, env, env.paths()).engine_config().device == device
    assert isinstance(flags, GlobalFlags)


def test_a_known_device_that_is_not_there_ends_with_8(tmp_path):
    done = call(["--device", "musa:9", "run", TOY, "hi"], values(tmp_path))
    assert done.code == 8 and "musa:9" in done.err and "llmrun hw" in done.err


@pytest.mark.parametrize(
    ("machine", "reason", "remedy"),
    [
        (replace(amd(trees.W7900), denied=("dev/kfd",)), "no rights on /dev/kfd", "usermod"),
        (amd(trees.VEGA_20), "no kernels for gfx906", "--device cpu"),
        (replace(amd(trees.W7900), built=("gfx1100",)), "computes on the processor only", "--device cpu"),
        (Machine(), "no card of kind hip", "llmrun hw"),
    ],
)
def test_a_card_that_cannot_be_used_is_an_error_with_its_verdict(tmp_path, machine, reason, remedy):
    with pytest.raises(DeviceError, match=reason) as raised:
        open_backend("hip", machine.place(tmp_path))
    assert remedy in raised.value.hint and "cpu:" not in raised.value.message


def test_auto_runs_on_the_processor_beside_a_card_that_cannot_be_used(tmp_path):
    assert open_backend("auto", amd(trees.VEGA_20).place(tmp_path)).name == "cpu"


def test_a_name_that_is_no_device_is_a_usage_error():
    with pytest.raises(UsageError):
        open_backend("quantum")
