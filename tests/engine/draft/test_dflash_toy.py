"""The toy's trained drafter beside the toy: how many of its guesses stand, and that a wrong layout is noticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from strata_backends.cpu import CpuBackend
from strata_engine.chat import ChatRequest, Message, TokenRequest
from strata_engine.config import EngineConfig, SpecConfig
from strata_engine.draft.base import DraftContext
from strata_engine.draft.dflash import DFlashDrafter, open_dflash
from strata_engine.formats.open import open_weights
from strata_engine.models.load import load_model
from strata_engine.runtime.engine import Engine
from strata_engine.runtime.prompt import Limits, make_prompt
from strata_kernels.native import NativeOps
from tests.support.drafting import Stage
from tests.support.engines import finish_of, ids_of, model_files
from tests.support.toy.evaluate import GREEDY, held_out_problems

FIXTURES = Path(__file__).parents[2] / "fixtures"
TOY, DRAFT = FIXTURES / "toy", FIXTURES / "toy-dflash"

Asked = list[tuple[list[int], list[int]]]


@pytest.fixture(scope="module")
def asked() -> Asked:
    """Held-out sums: the ids of each question and of the toy's own answer."""
    found = []
    config = EngineConfig(context_tokens=512, max_sequences=8)
    with Engine.open(model_files(TOY), config, CpuBackend()) as engine:
        limits = Limits(engine.parts.eos, engine.vocab_size, engine.context_tokens)
        for number, problem in enumerate(held_out_problems(8)):
            request = ChatRequest((Message.of("user", problem.question),), thinking=number % 2 == 0)
            ids = make_prompt(request, engine.parts.rules, limits, None).ids
            found.append((list(ids), ids_of(list(engine.submit(request, GREEDY)))))
    return found


def open_stage(draft: Path) -> tuple[Stage, DFlashDrafter]:
    ops, source = NativeOps(1), open_weights(TOY)
    model = load_model(source, ops).model
    config = EngineConfig(spec=SpecConfig("dflash", str(draft)))
    drafter = open_dflash(DraftContext(model, source, ops, config, None, draft))  # type: ignore[arg-type]
    return Stage(model, drafter, ops, rows=128, kv_type="f16"), drafter


def walk(stage: Stage, asked: Asked) -> float:
    """Tokens a round, as a greedy engine would keep them."""
    rounds = tokens = 0
    for number, (ids, answer) in enumerate(asked):
        sequence = stage.start(f"{number}", ids)
        stage.read(sequence, answer[0], chunk=128)
        at = 1
        while at < len(answer):
            [found] = stage.propose(stage.drafter.most, sequence)
            right = [draft == token for draft, token in zip(found.tokens, answer[at:], strict=False)]
            kept = answer[at : at + (right.index(False) if False in right else len(right)) + 1]
            stage.advance((sequence, kept))
            at, rounds, tokens = at + len(kept), rounds + 1, tokens + len(kept)
        stage.drop(sequence)
    return tokens / rounds


def test_most_of_its_guesses_stand(asked):
    stage, drafter = open_stage(DRAFT)
    length = walk(stage, asked)
    print(f"{length:.2f} tokens a round of at most 8")
    assert length - 1 >= 3
    assert drafter.report()["notes"] == []


def test_the_wrong_layout_is_noticed(asked, tmp_path):
    wrong = Path(shutil.copytree(DRAFT, tmp_path / "wrong"))
    config = json.loads((wrong / "config.json").read_text())
    config["dflash_config"]["sample_from_anchor"] = True
    (wrong / "config.json").write_text(json.dumps(config))
    stage, drafter = open_stage(wrong)
    # one prompt, long enough to be tried: a question and its answer
    ids, answer = max(asked, key=lambda pair: len(pair[0]) + len(pair[1]))
    sequence = stage.start("long", [*ids, *answer])
    stage.read(sequence, answer[-1], chunk=128)
    stage.propose(3, sequence)
    [note] = drafter.report()["notes"]
    assert "taken as B (config.json)" in note and '"sample_from_anchor": false' in note


@pytest.mark.parametrize("sequences", [1, 4])
def test_an_engine_with_it_gives_the_same_answers_in_fewer_steps(asked, sequences):
    spec = SpecConfig("dflash", str(DRAFT), adaptive=False, strict=True)
    config = EngineConfig(context_tokens=512, max_sequences=sequences, spec=spec)
    with Engine.open(model_files(TOY), config, CpuBackend()) as engine:
        streams = [engine.submit(TokenRequest(ids=tuple(ids)), GREEDY) for ids, _ in asked]
        answers = [list(stream) for stream in streams]
        assert [ids_of(events) for events in answers] == [answer for _, answer in asked]
        drafts = [finish_of(events).drafts for events in answers]
        engine.check()
    lengths = [d.lengths(len(answer))[0] for d, (_, answer) in zip(drafts, asked, strict=True) if d is not None]
    print(f"(n-1)/N {sum(lengths) / len(lengths):.2f} of at most 7")
    assert len(lengths) == len(asked) and sum(lengths) / len(lengths) >= 3
