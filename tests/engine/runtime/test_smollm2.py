"""The default model itself: greedy ids of the exact forward, and how far the native kernels are from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata_backends.cpu import CpuBackend
from strata_engine.bench.quality import divergence, forward_of
from strata_engine.chat import ChatRequest, Message, TokenRequest
from strata_engine.config import EngineConfig, SamplingParams
from strata_engine.events import Text
from strata_engine.formats.open import open_weights
from strata_engine.runtime.engine import Engine
from strata_kernels.binding import KernelsUnavailable
from strata_kernels.native import NativeOps
from strata_kernels.reference.ops import ReferenceOps
from tests.support.engines import finish_of, ids_of, model_files
from tests.support.smollm import smollm_path

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.timeout(3600)]
ITEMS = json.loads((Path(__file__).parents[2] / "vectors" / "greedy" / "smollm2.json").read_text())["items"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=64)


def test_plain_operations_reproduce_the_exact_greedy_ids_token_for_token():
    config = EngineConfig(context_tokens=512, kernels="reference", kv_type="f32")
    with Engine.open(model_files(smollm_path()), config, CpuBackend()) as engine:
        streams = [engine.submit(TokenRequest(ids=tuple(item["prompt_ids"])), GREEDY) for item in ITEMS]
        got = [ids_of(list(stream)) for stream in streams]
    assert got == [item["transformers_f32"]["ids"] for item in ITEMS]
    assert [len(ids) for ids in got] == [30, 64, 64, 64, 62]


def test_native_kernels_stay_within_the_allowed_divergence():
    try:
        ops = NativeOps(threads=2)
    except KernelsUnavailable as reason:
        pytest.skip(f"no native kernels here: {reason}")
    source = open_weights(smollm_path())
    texts = [item["prompt_ids"] + item["transformers_f32"]["ids"] for item in ITEMS]
    found = divergence(forward_of(source, ReferenceOps(), "f32"), forward_of(source, ops), texts)
    assert found.positions >= 300
    assert found.mean_nats <= 3e-3


QUESTION = ChatRequest((Message.of("user", "What is the capital of France?"),))


def test_the_exact_forward_names_paris():
    config = EngineConfig(context_tokens=512, kernels="reference", kv_type="f32")
    with Engine.open(model_files(smollm_path()), config, CpuBackend()) as engine:
        events = list(engine.submit(QUESTION, GREEDY))
    assert "".join(e.text for e in events if isinstance(e, Text)) == "The capital of France is Paris."
    assert finish_of(events).reason == "stop"


def test_a_seed_gives_the_same_answer_alone_and_in_a_crowd():
    with Engine.open(model_files(smollm_path()), EngineConfig(context_tokens=512), CpuBackend()) as engine:
        seeded = SamplingParams(temperature=0.9, seed=11, max_tokens=40)
        alone = ids_of(list(engine.submit(QUESTION, seeded)))
        crowd = [engine.submit(QUESTION, SamplingParams(temperature=0.9, seed=s, max_tokens=40)) for s in (1, 11, 2, 3)]
        assert [ids_of(list(s)) for s in crowd][1] == alone
