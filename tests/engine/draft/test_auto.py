"""The controller in a real engine: whatever it chooses, the answers are those of plain decoding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata_backends.cpu import CpuBackend
from strata_engine.config import SpecConfig
from strata_engine.draft.controller import Controller
from tests.support.engines import GREEDY, finish_of, ids_of, ids_request, tiny_engine

PROMPTS = [(5, 6, 7, 8) * 5, (9, 3, 9, 3, 9, 3, 9), tuple(range(3, 40))]
PARAMS = replace(GREEDY, max_tokens=60, ignore_eos=True)


def answers(engine) -> list[list[int]]:
    streams = [engine.submit(ids_request(*prompt), PARAMS) for prompt in PROMPTS]
    return [ids_of(list(stream)) for stream in streams]


@pytest.mark.parametrize("method", ["auto", "ngram"])
def test_answers_are_those_of_plain_decoding(checkpoints, method: str):
    path = checkpoints["llama"]
    with tiny_engine(path, CpuBackend()) as engine:
        plain = answers(engine)
    with tiny_engine(path, CpuBackend(), spec=SpecConfig(method, n_max=6, strict=method != "auto")) as engine:
        assert isinstance(engine._spec._control, Controller)
        assert [answers(engine) for _ in range(2)] == [plain, plain]
        drafts = finish_of(list(engine.submit(ids_request(*PROMPTS[0]), PARAMS))).drafts
        engine.check()
    assert drafts is not None and drafts.steps > 0
