"""Draft heads in the engine: answers of plain decoding, whatever shares the step, and what the trained toy keeps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from strata_backends.cpu import CpuBackend
from strata_engine.config import SamplingParams, SpecConfig
from strata_engine.errors import CorruptFile, NotFound
from strata_engine.runtime.engine import Engine
from tests.support.engines import GREEDY, finish_of, ids_of, ids_request, tiny_engine
from tests.support.tiny_hybrid import draft_head
from tests.support.tiny_models import save_tiny, tiny_model
from tests.support.toy.evaluate import ask as ask_toy
from tests.support.toy.evaluate import held_out_problems, open_toy

TOY = Path(__file__).resolve().parents[2] / "fixtures" / "toy"
FAMILIES = ["qwen3_5", pytest.param("qwen3_5_moe", marks=pytest.mark.slow), "qwen3_next"]
MTP = SpecConfig("mtp", n_max=3, adaptive=False, strict=True)
PARAMS = replace(GREEDY, max_tokens=16, logprobs=1)
SEEDED = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=7, ignore_eos=True, max_tokens=12)


def save_with_head(family: str, directory: Path, without: str = "") -> Path:
    """A checkpoint with a random draft head; `without`: a tensor that is left out."""
    model = tiny_model(family)
    _, tensors = draft_head(model)
    save_tiny(model, directory)
    file = directory / "model.safetensors"
    known = load_file(file)
    own = {name: tensor.contiguous() for name, tensor in tensors.items() if name != without}
    save_file({**known, **own}, file, metadata={"format": "pt"})
    return directory


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_with_head(request.param, tmp_path_factory.mktemp("heads") / request.param)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_with_head("qwen3_5", tmp_path_factory.mktemp("head") / "qwen3_5")


def opened(path: Path, spec: SpecConfig = MTP, **config) -> Engine:
    return tiny_engine(path, CpuBackend(), spec=spec, threads=1, **config)


def prompts(seed: int = 2) -> list[list[int]]:
    """Of lengths around a page (8) and longer than a step (16 rows); two begin alike."""
    draw = random.Random(seed)
    found = [draw.choices(range(3, 128), k=k) for k in (1, 2, 7, 8, 9, 17, 33)]
    return [*found, [*found[-1][:24], 5, 6], found[-1]]


def told(engine: Engine, asked: Sequence[Sequence[int]], params: SamplingParams = PARAMS) -> list[list]:
    streams = [engine.submit(ids_request(*prompt), params) for prompt in asked]
    return [[(t.id, t.logprob) for e in stream for t in getattr(e, "tokens", ())] for stream in map(list, streams)]


def drafted(engine: Engine) -> int:
    return engine.parts.speculation.report()["counts"]["drafted"]


@pytest.mark.parametrize("params", [PARAMS, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("sequences", [1, 4])
def test_answers_are_those_of_plain_decoding(saved, sequences, params):
    """Chunked prompts, prefixes from the cache, several sequences in a step: to the bit of the log probabilities."""
    with opened(saved, SpecConfig(), max_sequences=sequences) as plain:
        wanted = told(plain, prompts(), params)
    with opened(saved, max_sequences=sequences) as engine:
        assert told(engine, prompts(), params) == wanted
        assert drafted(engine) > 0
        engine.check()


def test_pages_that_run_out_change_nothing(one):
    """Sequences are preempted and read again; drafts get no page that somebody waits for."""
    asked = [random.Random(n).choices(range(3, 128), k=20) for n in range(4)]
    with opened(one, SpecConfig(), context_tokens=48) as plain:
        wanted = told(plain, asked, replace(PARAMS, max_tokens=24))
    with opened(one, context_tokens=48) as engine:
        engine.parts.memory.pool.take(engine.parts.memory.pool.free - 14)  # room for two and a half of them
        assert told(engine, asked, replace(PARAMS, max_tokens=24)) == wanted
        assert engine.report().speed["preemptions"] > 0 and drafted(engine) > 0


def test_a_cancelled_sequence_leaves_nothing_to_the_next(one):
    with opened(one, SpecConfig(), max_sequences=1) as plain:
        wanted = told(plain, prompts())
    with opened(one, max_sequences=1) as engine:
        stream = engine.submit(ids_request(*range(3, 25)), replace(PARAMS, max_tokens=60))
        for event in stream:
            if getattr(event, "tokens", ()):
                break
        stream.close()
        assert told(engine, prompts()) == wanted
        engine.check()


def test_what_drafts_need_is_recorded_before_an_answer_and_not_in_it(one):
    asked = [random.Random(n).choices(range(3, 128), k=12) for n in range(3)]
    with opened(one, SpecConfig(), max_sequences=1) as plain:
        wanted = told(plain, asked)
    with opened(one, max_sequences=1) as engine:
        found, recorded = [], []
        for prompt in asked:
            found += told(engine, [prompt])
            drafters = engine.parts.speculation._drafters
            recorded.append(drafters["mtp"].recorded)
        assert found == wanted and drafted(engine) > 0
        # chains of 3 behind 1, 2 and 4 rows, and behind the prompt; ends of answers take these, too
        assert recorded == [4, 4, 4]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_no_token_comes_after_the_last(one, limit):
    with opened(one, SpecConfig()) as plain, opened(one) as engine:
        params = replace(PARAMS, max_tokens=limit)
        assert told(engine, prompts()[:3], params) == told(plain, prompts()[:3], params)
        (events,) = [list(engine.submit(ids_request(3, 4, 5), params))]
        assert len(ids_of(events)) == limit and finish_of(events).reason == "length"


def test_a_head_that_lacks_a_tensor_is_refused_by_name(tmp_path):
    """Silently dropped, a part of the head would only show as drafts that are never right."""
    path = save_with_head("qwen3_5", tmp_path / "broken", without="mtp.norm.weight")
    with pytest.raises(CorruptFile, match="mtp.norm.weight"):
        opened(path).close()
    with opened(path, replace(MTP, strict=False)) as engine:
        assert any("mtp.norm.weight" in notice.message for notice in engine.parts.notices)
        assert told(engine, [[4, 5, 6]])[0]


def test_a_model_without_a_head_is_refused_by_name(checkpoints):
    with pytest.raises(NotFound, match="no draft head"):
        opened(checkpoints["qwen3_5"]).close()


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_the_toys_head_keeps_three_tokens_a_round(form):
    """Held-out sums: at least 2.8 tokens a round of at most 4, the corrected one included; the results stay right."""
    path = TOY if form == "safetensors" else TOY / "toy-Q8_0.gguf"
    with open_toy(path, threads=1, spec=MTP) as engine:
        marked = ask_toy(engine, held_out_problems(10), thinking=True)
        counts = engine.parts.speculation.report()["counts"]
    assert sum(answer.right for answer in marked) >= 9
    assert counts["rounds"] > 50 and counts["tokens_per_round"] >= 2.8
