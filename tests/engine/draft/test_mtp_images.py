"""A draft head beside images: the answers are those of plain decoding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strata_backends.cpu import CpuBackend
from strata_engine.chat import ChatRequest, Message, Part
from strata_engine.config import EngineConfig, SpecConfig
from strata_engine.registry.local import local_model
from strata_engine.runtime.engine import Engine
from tests.support.engines import GREEDY, ids_of
from tests.support.images import file_of, picture
from tests.support.tiny_hybrid import draft_head
from tests.support.tiny_models import tiny_model
from tests.support.tiny_vision import seeing_tokenizer, tiny_vl_35, write_vl_gguf

ROWS = 320
CAT, DOG = file_of(picture(30, 21)), file_of(picture(17, 40, seed=1))
PARAMS = replace(GREEDY, max_tokens=16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("seeing")
    _, head = draft_head(tiny_model("qwen3_5"))  # of the same width
    write_vl_gguf(tiny_vl_35(vocab_size=ROWS), base, tokenizer=seeing_tokenizer(ROWS), draft=head)
    return base


def asked(*images: bytes) -> ChatRequest:
    parts = (*(Part("image", data=data) for data in images), Part("text", "what is this?"))
    return ChatRequest((Message("user", parts),))


def answers(folder: Path, spec: SpecConfig) -> tuple[list[list[int]], int]:
    """To one image, to two, to none and to the first again, side by side; and how many drafts were verified."""
    requests = [asked(CAT), asked(DOG, CAT), asked(), asked(CAT)]
    config = EngineConfig(
        kv_type="f32", max_sequences=2, batch_rows=9, page_tokens=8, context_tokens=128, threads=1, spec=spec
    )
    with Engine.open(local_model(str(folder)), config, CpuBackend()) as engine:
        streams = [engine.submit(request, PARAMS) for request in requests]
        found = [ids_of(list(stream)) for stream in streams]
        engine.check()
        assert engine.parts.speculation.active == (spec.method != "none")
        counts = engine.parts.speculation.report().get("counts", {})
    return found, counts.get("drafted", 0)


def test_answers_beside_images_are_those_of_plain_decoding(folder):
    wanted, none = answers(folder, SpecConfig())
    assert none == 0 and wanted[0] == wanted[3] != wanted[1]
    found, drafted = answers(folder, SpecConfig("mtp", n_max=3, adaptive=False, strict=True))
    assert drafted > 30
    assert found == wanted
