"""A speed run over a tiny model: what its rows say about the setting."""

from __future__ import annotations

from strata_backends.base import Profile
from strata_backends.cpu import CpuBackend
from strata_engine.bench.plan import SpeedTest
from strata_engine.bench.session import Session, SpeedPlan
from strata_engine.config import EngineConfig
from tests.support.engines import model_files
from tests.support.tiny_llama import tiny_llama


def test_rows_say_which_kernels_ran_not_what_was_asked(tmp_path):
    plan = SpeedPlan(model_files(tiny_llama(tmp_path / "m.gguf")), (EngineConfig(),), (SpeedTest(4, 0),), 1)
    rows = list(Session(plan, lambda device: CpuBackend(), lambda text: None).rows())
    ran = [choice.taken for choice in CpuBackend().ops(Profile()).choices if choice.what == "kernels"]
    assert EngineConfig().kernels == "auto"
    assert [row.data()["kernels"] for row in rows] == ran
