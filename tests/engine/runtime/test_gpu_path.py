"""An engine through all of the GPU path: operations, planned variants, the launcher over a driver, recorded graphs.

The driver is the stand-in library, whose launches run in Triton's interpreter. Slow, so the models are tiny.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from strata_backends.gpu_ops import build_missing
from strata_engine.config import SamplingParams
from strata_kernels.gpu.arrays import HostAllocator
from strata_kernels.gpu.bundle import Store
from strata_kernels.gpu.interpreted import InterpretedLauncher
from strata_kernels.gpu.ops import GpuOps
from tests.support.engines import ids_of, ids_request, tiny_engine
from tests.support.reference_device import DeviceBackend
from tests.support.standin.kernels import standin_ops
from tests.support.standin.library import StandIn, build
from tests.support.tiny_models import save_tiny, tiny_model

PARAMS = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=4)
PROMPTS = (range(3, 9), range(40, 60))  # decode kernels alone, and those of prompts


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", pytest.param("qwen3_5_moe", marks=pytest.mark.long)])
def test_an_engine_answers_as_on_the_processor(family: str, tmp_path: Path):
    path = save_tiny(tiny_model(family), tmp_path)
    with tiny_engine(path) as engine:
        wanted = [ids_of(list(engine.submit(ids_request(*prompt), PARAMS))) for prompt in PROMPTS]
    standin = StandIn(build(tmp_path), tmp_path)
    ops = standin_ops(standin, tmp_path, "hip")
    planned: list[str] = []
    ops._build = lambda variants: planned.extend(variant.key for variant in variants) or "noted"
    with tiny_engine(path, DeviceBackend(ops), batch_rows=32) as engine:
        found = [ids_of(list(engine.submit(ids_request(*prompt), PARAMS))) for prompt in PROMPTS]
        assert engine.load_numbers().kernel_compiles_total == 0
    assert found == wanted and standin.raised == []
    # nothing was launched that was not planned before the engine was ready
    assert {variant.key for variant in ops.launcher._functions} <= set(planned)
    assert ops.launcher.counts.graph_launches and not ops.launcher.counts.compiles


@pytest.mark.slow
def test_what_is_missing_is_compiled_before_the_engine_is_ready(tmp_path: Path):
    """Compiled for a card that is not here; steps then run in the interpreter."""
    path, told = save_tiny(tiny_model("llama"), tmp_path / "model"), []
    kernels = tmp_path / "kernels"

    def opened() -> str:
        build = partial(build_missing, "gfx1100", kernels, lambda done, total: told.append((done, total)))
        ops = GpuOps(InterpretedLauncher(), HostAllocator(host=False), build)
        with tiny_engine(path, DeviceBackend(ops)) as engine:
            chosen = {choice["what"]: choice for choice in engine.report().choices}
        return chosen["compiled kernels"]["why"]

    first, built = opened(), len(list(Store(kernels, "gfx1100").files()))
    assert "compiled now" in first and built > 10 and told[-1] == (built, built)
    assert opened() == "all compiled before"
    damaged = next(Store(kernels, "gfx1100").files())
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert opened().startswith("1 compiled now")
