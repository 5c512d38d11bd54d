"""What `hw` and `doctor` say of the made-up machines; `python -m tests.support.gpu_golden` writes the golden files."""

from __future__ import annotations

import io
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from strata_backends.gpu import Place
from strata_backends.gpu_ops import gpu_ops
from strata_backends.probe import gpus, overrides
from strata_cli import doctor_checks
from strata_cli.app import App
from strata_cli.commands import system
from strata_cli.globals import GlobalFlags
from strata_cli.output import Output
from strata_engine.doctor.graphics import check_graphics
from strata_engine.env import Env
from tests.support import machine_trees as trees
from tests.support.machine_trees import Machine, amd, m1000, nvidia, on_the_bus

GOLDEN = Path(__file__).resolve().parents[1] / "cli/golden/gpus"
_NO_COMPILER = "kernels for gfx1100 are compiled by triton, which is not installed"
_READY = ("gfx1100", "gfx1201", "sm_90", "mp_22")
H200 = nvidia(("NVIDIA H200", "9.0", 143771))
MACHINES: dict[str, Machine] = {
    "none": Machine(),
    "rx-7900-xtx": amd(trees.RX_7900_XTX),
    "w7900": amd(trees.W7900),
    "rx-9070-xt": amd(trees.RX_9070_XT),
    "r9700": amd(trees.R9700),
    "m1000-64gb": m1000(),
    "h200": H200,
    "two-cards": amd(trees.RX_7900_XTX, trees.RX_9070_XT),
    "two-cards-one-hidden": replace(
        amd(trees.RX_7900_XTX, trees.RX_9070_XT), variables={"HIP_VISIBLE_DEVICES": "1"}
    ),
    "no-permission": replace(amd(trees.RX_7900_XTX), denied=("dev/kfd",)),
    "in-a-container": replace(amd(trees.RX_7900_XTX), files={
        name: text for name, text in amd(trees.RX_7900_XTX).files.items() if name != "dev/kfd"}),
    "unsupported-gfx906": amd(trees.VEGA_20),
    "override": replace(amd(trees.RX_9070_XT), variables={"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}),
    "old-rocm": amd(trees.RX_9070_XT, driver=trees.ROCM_5_7),
    "no-runtime": replace(amd(trees.RX_7900_XTX), drivers={}),
    "kernels-not-built": replace(amd(trees.RX_7900_XTX), built=("none",)),
    "no-compiler": replace(amd(trees.RX_7900_XTX), built=("none",), compiler=_NO_COMPILER),
    "no-driver": on_the_bus("0x1002\n", "0x744c\n"),
}  # fmt: skip


def verdict(machine: Machine, root: Path) -> str:
    """What both commands print of the machine's GPUs."""
    place = replace(replace(machine, built=machine.built or _READY).place(root), make_ops=gpu_ops(root))
    checks = check_graphics(gpus(place), overrides(place), place.make_ops is not None)
    return "\n".join(["== hw", *_hw(place), "== doctor", *doctor_checks.lines(checks), ""])


def _hw(place: Place) -> list[str]:
    """The command's own lines about graphics: those about this processor differ from machine to machine."""
    env = Env({"HOME": "/nowhere", "LLMRUN_HOME": "/nowhere"})
    app = App(GlobalFlags(), env, env.paths(), Output(stdout=io.StringIO()))
    context = SimpleNamespace(find_root=lambda: SimpleNamespace(obj=app))
    with mock.patch.object(system, "place_of", lambda _app: place):
        system.hw(cast(Any, context))
    lines = cast(io.StringIO, app.output.stdout).getvalue().splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("graphics"))
    return lines[first:]


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, machine in MACHINES.items():
        with tempfile.TemporaryDirectory() as folder:
            (GOLDEN / f"{name}.txt").write_text(verdict(machine, Path(folder)), encoding="utf-8")
