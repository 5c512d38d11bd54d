"""Drafts over recurrent layers: a state cannot be written twice, so it must not take up what does not stand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strata_backends.cpu import CpuBackend
from strata_engine.chat import ChatRequest, Message, Part
from strata_engine.events import Event, Reasoning, Text
from tests.support.drafters import TestDrafter, drafting_engine, erring, oracle
from tests.support.engines import GREEDY, ReferenceBackend, finish_of, ids_of, ids_request, tiny_engine
from tests.support.tiny_models import save_tiny, tiny_model

PROMPTS = [tuple((7 * n + 5 * k) % 120 + 3 for n in range(length)) for k, length in enumerate((20, 9, 8, 17, 3))]
LONG = replace(GREEDY, max_tokens=50)
Answers = dict[tuple[int, ...], list[int]]


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tiny_model("qwen3_5"), tmp_path_factory.mktemp("qwen3_5"))


def run_all(engine, params=LONG) -> list[list[int]]:
    streams = [engine.submit(ids_request(*prompt), params) for prompt in PROMPTS]
    return [ids_of(list(stream)) for stream in streams]


@pytest.fixture(scope="module")
def answers(hybrid: Path) -> Answers:
    with tiny_engine(hybrid, CpuBackend(), threads=1) as engine:
        return dict(zip(PROMPTS, run_all(engine), strict=True))


@pytest.mark.parametrize("cached", [True, False])
def test_a_second_answer_from_the_same_slots_and_pages_is_the_same(hybrid, answers, cached):
    drafter = TestDrafter(erring(0.3, answers), 5)
    config = {"max_sequences": 2, "threads": 1, "batch_rows": 12, "prefix_cache": cached}
    with drafting_engine(hybrid, drafter, CpuBackend(), **config) as engine:
        assert run_all(engine) == list(answers.values())
        assert run_all(engine) == list(answers.values())
    assert drafter.rounds > 50


def test_a_preempted_sequence_reads_its_tokens_again(hybrid, answers):
    with drafting_engine(hybrid, TestDrafter(oracle(answers), 3), max_sequences=4) as engine:
        priced = engine.parts.priced
    fixed = priced.weights_bytes + priced.workspace_bytes + priced.state_bytes
    cramped = ReferenceBackend(free_bytes=fixed + 13 * 8 * priced.kv_token_bytes)  # pages of 8 tokens
    drafter = TestDrafter(erring(0.3, answers), 3)
    with drafting_engine(hybrid, drafter, cramped, max_sequences=4, threads=1) as engine:
        assert run_all(engine) == list(answers.values())
        assert engine.report().speed["preemptions"] > 0


def test_a_step_that_fails_half_way_with_drafts_leaves_nothing_in_the_state(hybrid, answers):
    """Its rows may have moved states on; the sequences run again one by one, from their committed tokens."""
    drafter = TestDrafter(oracle(answers), 4)
    with drafting_engine(hybrid, drafter, CpuBackend(), threads=1, max_sequences=2) as engine:
        executor, ran, failed = engine.parts.executor, engine.parts.executor.run, []

        def sometimes(spans):
            logits = ran(spans)
            if any(span.keep is not None for span in spans) and len(failed) < 4:
                failed.append(len(spans))
                raise RuntimeError("a kernel failed")
            return logits

        executor.run = sometimes
        assert run_all(engine) == list(answers.values())
        assert len(failed) == 4


TOY = Path("tests/fixtures/toy")
QUESTION = ChatRequest((Message("user", (Part("text", "What is 12 plus 35?"),)),))
STOPS = ["35", "+ 3", "12 + 35 = 4", " = ", "47", "7.", "nowhere"]  # of what is not thinking


def shown(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, (Text, Reasoning)))


@pytest.fixture(scope="module")
def toy() -> tuple[tuple[int, ...], list[int], dict[str, tuple[str, object]]]:
    """Prompt and answer of the question, and what is shown with each stop string, all without drafts."""
    ended = {}
    with tiny_engine(TOY, CpuBackend(), threads=1) as engine:
        whole = list(engine.submit(QUESTION, replace(GREEDY, ignore_eos=False)))
        for stop in STOPS:
            events = list(engine.submit(QUESTION, replace(GREEDY, ignore_eos=False, stop=(stop,))))
            ended[stop] = (shown(events), finish_of(events).stop_match)
        prompt = engine.parts.rules.chat.render(QUESTION).ids
    return tuple(prompt), ids_of(whole), ended


@pytest.mark.parametrize("most", [3, 7])
def test_stop_strings_end_an_answer_inside_a_chain_as_they_do_without(toy, most):
    prompt, answer, ended = toy
    assert sum(match == stop for stop, (_, match) in ended.items()) >= 5
    drafter = TestDrafter(oracle({prompt: answer}), most)
    with drafting_engine(TOY, drafter, CpuBackend(), threads=1) as engine:
        for stop, wanted in ended.items():
            events = list(engine.submit(QUESTION, replace(GREEDY, ignore_eos=False, stop=(stop,))))
            assert (shown(events), finish_of(events).stop_match) == wanted
    assert drafter.rounds > 0
