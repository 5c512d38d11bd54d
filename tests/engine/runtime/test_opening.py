"""Opening a model: what is refused, what is said, on the real CPU device."""

from __future__ import annotations

import pytest

from strata_backends.cpu import CpuBackend
from strata_engine.config import EngineConfig, SamplingParams
from strata_engine.errors import CorruptFile, DeviceError, NotFound, OutOfMemory, UsageError
from strata_engine.registry.files import ModelFiles
from strata_engine.runtime.engine import Engine
from tests.support.engines import ReferenceBackend, ids_of, ids_request, model_files, tiny_engine

SHORT = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=10)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"mode": "sloppy"}, "sloppy"),
        ({"kv_type": "q4"}, "q4"),
        ({"context_tokens": 1}, "context_tokens 1"),
        ({"max_sequences": 0}, "max_sequences 0"),
        ({"batch_rows": 0}, "batch_rows 0"),
        ({"page_tokens": 0}, "page_tokens 0"),
        ({"max_queue": -1}, "max_queue -1"),
        ({"threads": -2}, "threads -2"),
        ({"kernels": "magic"}, "magic"),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_refused_by_name(llama, config, named):
    with pytest.raises(UsageError, match=named):
        tiny_engine(llama, CpuBackend(), **config)


def test_kernels_that_cannot_run_here_are_a_device_error_with_a_way_out(llama):
    foreign = "neon" if CpuBackend().info().arch in ("x86_64", "AMD64") else "avx2"
    with pytest.raises(DeviceError, match="cpu") as caught:
        tiny_engine(llama, CpuBackend(isa=foreign), kernels="native")
    assert caught.value.hint and caught.value.exit_code == 8


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_the_cpu_device_answers_and_says_what_runs(llama, kernels):
    with tiny_engine(llama, CpuBackend(), kernels=kernels) as engine:
        events = list(engine.submit(ids_request(5, 9, 77, 31), SHORT))
        choices = {c["what"]: c for c in engine.report().choices}
    with tiny_engine(llama) as plain:
        assert ids_of(events) == ids_of(list(plain.submit(ids_request(5, 9, 77, 31), SHORT)))
    assert {"kernels", "threads", "mode", "context", "device"} <= choices.keys()
    assert choices["kernels"]["why"]
    assert kernels == "auto" or choices["kernels"]["taken"] == "reference"


def test_mode_fast_is_answered_in_the_report(llama):
    with tiny_engine(llama, CpuBackend(), mode="fast") as engine:
        mode = [c for c in engine.report().choices if c["what"] == "mode"]
    assert len(mode) == 1
    assert mode[0]["taken"] == "fast" or "fast" in [turned_down["name"] for turned_down in mode[0]["rejected"]]


def test_a_backend_that_says_nothing_about_fast_is_not_trusted_with_it(llama):
    with pytest.raises(UsageError, match="fast"):
        tiny_engine(llama, ReferenceBackend(), mode="fast")


def test_a_context_beyond_the_models_own_is_lowered_and_said(llama):
    with tiny_engine(llama, context_tokens=4000) as engine:
        report = engine.report()
        assert engine.context_tokens == 256
    assert [n.code for n in report.notices if n.code.startswith("context")] == ["context_lowered"]
    assert "4000" in next(n.message for n in report.notices if n.code == "context_lowered")


def test_too_little_memory_is_refused_before_anything_is_loaded(llama):
    with pytest.raises(OutOfMemory) as caught:
        tiny_engine(llama, ReferenceBackend(free_bytes=100_000))
    assert caught.value.exit_code == 7 and caught.value.details["free_bytes"] == 100_000


def test_a_damaged_file_is_refused_without_a_trace_of_an_engine(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\xff" * 64)
    with pytest.raises(CorruptFile):
        Engine.open(model_files(bad), EngineConfig(), ReferenceBackend())


def test_a_model_without_weight_files_is_not_found():
    with pytest.raises(NotFound, match="nothing"):
        Engine.open(ModelFiles("nothing", "nothing", "", ()), EngineConfig(), ReferenceBackend())


def test_notes_of_the_registry_become_notices(llama):
    with Engine.open(
        model_files(llama, notes=("the alias hides a path",)), EngineConfig(), ReferenceBackend()
    ) as engine:
        assert "the alias hides a path" in [n.message for n in engine.report().notices]
