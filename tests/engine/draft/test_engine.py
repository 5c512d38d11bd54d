"""Drafts inside the engine: limits, sampling, ends, failures, what drafters are told, and pages under pressure."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from strata_backends.cpu import CpuBackend
from strata_engine.config import SamplingParams, SpecConfig
from strata_engine.core.batch import Span
from strata_engine.core.sequence import Hold
from strata_engine.core.sequence import Sequence as TokenSequence
from strata_engine.draft.base import Wants
from strata_engine.errors import LlmrunError
from strata_engine.events import Notice, Token
from strata_engine.memory.kv import KvMemory
from strata_engine.memory.memory import Memory
from strata_engine.runtime.engine import Engine
from strata_engine.runtime.sampler import Chooser
from strata_engine.runtime.scheduler import Scheduler, SchedulerLimits
from strata_engine.runtime.transforms import Floats, History
from strata_kernels.native import NativeOps
from tests.support.drafters import TestDrafter, always_wrong, drafting_engine, erring, oracle, wrong_at
from tests.support.engines import GREEDY, ReferenceBackend, finish_of, ids_of, ids_request, tiny_engine, tokens_of
from tests.support.forward import Runner
from tests.support.tiny_models import memory_source, save_tiny, tiny_model

PROMPT = (5, 9, 77, 31, 64, 8, 100, 3, 3, 12, 55, 90, 41, 17, 28, 6, 119, 14, 70, 14)
SMALL = {"threads": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tiny_model("llama"), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[Engine]:
    with tiny_engine(model, CpuBackend(), **SMALL) as engine:
        yield engine


def ask(engine: Engine, params: SamplingParams = GREEDY, prompt: tuple[int, ...] = PROMPT):
    return list(engine.submit(ids_request(*prompt), params))


@pytest.fixture(scope="module")
def answer(plain: Engine) -> list[int]:
    """The greedy answer to PROMPT, 40 tokens of it."""
    return ids_of(ask(plain, replace(GREEDY, max_tokens=40)))


@pytest.mark.parametrize("most", [1, 3, 7, 15])
def test_an_oracle_needs_one_step_for_every_chain(model, answer, most):
    drafter = TestDrafter(oracle({PROMPT: answer}), most)
    with drafting_engine(model, drafter, CpuBackend(), batch_rows=32, **SMALL) as engine:
        finish = finish_of(ask(engine, replace(GREEDY, max_tokens=40)))
        steps = int(engine.report().speed["steps"])
    assert steps == 1 + math.ceil(39 / (most + 1))  # the prompt's rows give the first token
    assert finish.drafts is not None and finish.drafts.accepted == finish.drafts.drafted


def test_the_wrong_drafter_costs_rows_and_nothing_else(model, answer):
    drafter = TestDrafter(always_wrong({PROMPT: answer}), 3)
    with drafting_engine(model, drafter, CpuBackend(), batch_rows=32, **SMALL) as engine:
        events = ask(engine, replace(GREEDY, max_tokens=40))
        assert ids_of(events) == answer and engine.report().speed["steps"] == 1 + 39
    assert finish_of(events).drafts.accepted == 0


SAMPLED = {
    "seed": SamplingParams(temperature=1.2, top_k=0, top_p=1.0, min_p=0.0, seed=5, ignore_eos=True),
    "top-k, top-p, min-p": SamplingParams(temperature=0.9, top_k=20, top_p=0.9, min_p=0.02, seed=6, ignore_eos=True),
    "penalties": replace(GREEDY, repeat_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4, penalty_last_n=16),
    "penalised and seeded": SamplingParams(temperature=1.0, seed=3, frequency_penalty=1.0, ignore_eos=True),
    "bias": replace(GREEDY, logit_bias=((14, -3.0), (90, 2.5))),
    "logprobs": replace(GREEDY, logprobs=3),
    "at least 9": SamplingParams(temperature=0.0, min_tokens=9, stop_token_ids=tuple(range(40, 90))),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_sampling_is_that_of_plain_decoding(model, plain, name):
    params = replace(SAMPLED[name], max_tokens=24)
    wanted = ask(plain, params)
    for guess in (oracle, lambda answers: erring(0.4, answers)):
        drafter = TestDrafter(guess({PROMPT: ids_of(wanted)}), 5)
        with drafting_engine(model, drafter, CpuBackend(), **SMALL) as engine:
            events = ask(engine, params)
        assert tokens_of(events) == tokens_of(wanted)
        assert finish_of(events).reason == finish_of(wanted).reason
        assert drafter.rounds > 0


@pytest.mark.parametrize("count", [1, 2, 4, 5, 6])
def test_limits_end_an_answer_inside_a_chain(model, answer, count):
    with drafting_engine(model, TestDrafter(oracle({PROMPT: answer}), 4), CpuBackend(), **SMALL) as engine:
        events = ask(engine, replace(GREEDY, max_tokens=count))
    assert ids_of(events) == answer[:count]
    assert (finish_of(events).reason, finish_of(events).usage.completion_tokens) == ("length", count)


@pytest.mark.parametrize("place", range(1, 8))
@pytest.mark.parametrize("wrong", [None, 1])
def test_a_stop_token_ends_an_answer_as_draft_as_correction_and_as_bonus(model, plain, answer, place, wrong):
    """With chains of 3 the places go through all rows of a step; with `wrong` the chain breaks before some of them."""
    params = replace(GREEDY, max_tokens=20, stop_token_ids=(answer[place],))
    wanted = ask(plain, params)
    guess = oracle({PROMPT: answer}) if wrong is None else wrong_at(wrong, {PROMPT: answer})
    with drafting_engine(model, TestDrafter(guess, 3), CpuBackend(), **SMALL) as engine:
        events = ask(engine, params)
    assert ids_of(events) == ids_of(wanted) == answer[: answer.index(answer[place]) + 1]
    assert finish_of(events).stop_match == finish_of(wanted).stop_match == answer[place]


def test_preempted_and_late_sequences_get_their_plain_answers(model):
    prompts = [PROMPT[n:] for n in range(4)]
    long = replace(GREEDY, max_tokens=50)
    with tiny_engine(model, **SMALL) as roomy:
        wanted = {p: ids_of(ask(roomy, long, p)) for p in prompts}
        fixed = roomy.parts.priced.weights_bytes + roomy.parts.priced.workspace_bytes
    page = 8 * 2 * 2 * 2 * 16 * 4  # tokens x (key, value) x layers x kv heads x width x bytes
    drafter = TestDrafter(erring(0.3, wanted), 3)
    with drafting_engine(model, drafter, ReferenceBackend(fixed + 12 * page), **SMALL) as engine:
        streams = [engine.submit(ids_request(*prompt), long) for prompt in prompts]
        assert [ids_of(list(stream)) for stream in streams] == list(wanted.values())
        assert engine.report().speed["preemptions"] > 0
    assert drafter.rounds > 0 and not drafter.read


def test_a_cancelled_sequence_leaves_nothing_to_the_next_on_its_pages(model, answer):
    drafter = TestDrafter(erring(0.3, {PROMPT: answer}), 3)
    with drafting_engine(model, drafter, CpuBackend(), max_sequences=1, **SMALL) as engine:
        stream = engine.submit(ids_request(*PROMPT), replace(GREEDY, max_tokens=40))
        seen = []
        for event in stream:
            seen.append(event)
            if len(seen) == 4:
                stream.close()
        engine.check()
        assert ids_of(ask(engine, replace(GREEDY, max_tokens=30))) == answer[:30]
    assert stream.sequence_id in drafter.forgotten


def failing(*_: object) -> list[int]:
    raise ValueError("no idea")


@pytest.mark.parametrize("guess", [failing, lambda s, most: [128], lambda s, most: [-1]], ids=["raises", "128", "-1"])
def test_a_drafter_that_fails_is_switched_off_with_a_notice(model, answer, guess):
    drafter = TestDrafter(guess, 3)
    with drafting_engine(model, drafter, CpuBackend(), fails=True, **SMALL) as engine:
        events = ask(engine, replace(GREEDY, max_tokens=20))
        assert ids_of(events) == answer[:20]
        assert [e.code for e in events if isinstance(e, Notice)] == ["spec_off"]
        assert "spec_off" in [notice.code for notice in engine.report().notices]
        assert ids_of(ask(engine, replace(GREEDY, max_tokens=20))) == answer[:20]


def test_a_step_that_fails_with_drafts_runs_again_without(model, answer):
    drafter = TestDrafter(oracle({PROMPT: answer}), 3)
    with drafting_engine(model, drafter, CpuBackend(), **SMALL) as engine:
        executor, ran = engine.parts.executor, engine.parts.executor.run
        executor.run = lambda spans: ran(spans) if spans[0].keep is None else failing()
        assert ids_of(ask(engine, replace(GREEDY, max_tokens=12))) == answer[:12]


def test_drafters_are_told_of_every_kept_row_with_its_features(model, answer):
    """In chunks, with drafts accepted and refused: the rows that are kept have the features of a fresh prompt."""
    wants = Wants(final=True, taps=(0, 1))
    drafter = TestDrafter(erring(0.4, {PROMPT: answer}), 5, wants)
    drafter.forget = lambda sequence_id: None
    with drafting_engine(model, drafter, CpuBackend(), batch_rows=8, **SMALL) as engine:
        ids = [*PROMPT, *ids_of(ask(engine, replace(GREEDY, max_tokens=40)))]
    (told,) = (np.concatenate(parts) for parts in drafter.features.values())
    runner = Runner(memory_source(tiny_model("llama")), NativeOps(threads=1), wants=wants)
    runner.executor.run([runner.span(Hold(), ids[: len(told)], 0)])
    left = runner.executor.features(len(told))
    assert len(told) > 50 and np.array_equal(told, np.concatenate([left.final, left.taps], axis=1))


def cache_pages(caches, pages, count: int) -> list[np.ndarray]:
    """Keys and values of a sequence's first `count` tokens in every layer, as far as these fill pages.

    How a page is laid out is the operations' own: rows that do not count may lie among the others of the last one.
    """
    arrays = [array for layer in caches for array in (layer.keys, layer.values)]
    return [array[list(pages)[: count // array.shape[2]]].copy() for array in arrays]


def after(model: Path, drafter: TestDrafter, prompt: tuple[int, ...], count: int) -> tuple[list[np.ndarray], list[int]]:
    """What lies in the cache when an answer of `count` tokens ends, and the tokens it belongs to."""
    found: list = []
    with drafting_engine(model, drafter, CpuBackend(), **SMALL) as engine:

        def look(_: str) -> None:
            (sequence,) = engine._scheduler.sequences()
            held = sequence.hold.tokens
            found.append((cache_pages(engine.parts.memory.caches, sequence.hold.pages, held), sequence.tokens[:held]))

        drafter.forget = look
        ask(engine, replace(GREEDY, max_tokens=count), prompt)
    return found[0]


@pytest.mark.parametrize("seed", range(3))
def test_the_cache_holds_the_bits_of_a_fresh_prompt(model, plain, seed):
    prompt = PROMPT[seed:]
    answers = {prompt: ids_of(ask(plain, replace(GREEDY, max_tokens=40), prompt))}
    mixed, tokens = after(model, TestDrafter(erring(0.4, answers), 5), prompt, 30)
    fresh, again = after(model, TestDrafter(lambda *_: [], 5), tuple(tokens), 1)
    assert again == tokens and len(tokens) > len(prompt) + 20
    assert all(np.array_equal(a, b) for a, b in zip(mixed, fresh, strict=True))


@pytest.mark.parametrize("crop", [True, False])
def test_rows_that_do_not_stand_leave_no_trace_but_would_if_they_counted(crop):
    """The same comparison finds the known fault: all rows of a step are counted, whatever stood of them."""
    draw = random.Random(4)
    text = draw.choices(range(128), k=60)
    runner = Runner(memory_source(tiny_model("llama")), NativeOps(threads=1))
    memory, hold, fresh = runner.memory, Hold(), Hold()
    runner.executor.run([runner.span(hold, text[:9], 0)])
    at = 9
    while at < 50:
        right, wrong = draw.randint(0, 3), draw.randint(0, 3)
        ids = [*text[at : at + 1 + right], *((token + 1) % 128 for token in text[at + 1 + right :][:wrong])]
        assert memory.reserve(hold, len(ids))
        runner.executor.run([Span(ids, hold.tokens, hold.pages, keep=1)])
        memory.commit(hold, 1 + right if crop else len(ids), keep=1)
        at += 1 + right
    runner.executor.run([runner.span(fresh, text[:at], 0)])
    pairs = zip(*(cache_pages(memory.caches, one.pages, at) for one in (hold, fresh)), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs) == crop


def test_verifying_says_that_an_answer_is_the_same_and_finds_one_that_is_not(model, answer, monkeypatch):
    params = replace(GREEDY, max_tokens=20)

    def said() -> list[str]:
        drafter = TestDrafter(erring(0.3, {PROMPT: answer}), 3)
        with drafting_engine(model, drafter, CpuBackend(), verify=True, **SMALL) as engine:
            events = ask(engine, params)
        assert finish_of(events).usage.completion_tokens == 20
        return [event.message for event in events if isinstance(event, Notice)]

    assert said() == ["speculation: identical to plain decoding: 20 tokens"]
    right, once = Chooser.choose, []

    def wrong_once(chooser: Chooser, logits: Floats, history: History) -> Token:
        token = right(chooser, logits, history)
        if len(history.ids) == len(PROMPT) + 7 and not once:
            once.append(token)
            return Token((token.id + 1) % 128)
        return token

    monkeypatch.setattr(Chooser, "choose", wrong_once)
    (text,) = said()
    assert "differs from plain decoding at token 7 (from 0)" in text and "logits differ by" in text


def test_room_for_drafts_is_what_nobody_else_wants():
    memory = Memory([KvMemory(1, 2)], 6, 4, "f16")
    scheduler = Scheduler(memory, SchedulerLimits(4, 8, 8, 64))
    first, second = (TokenSequence(name, [1, 2, 3], 3, limit_tokens=20) for name in "ab")
    scheduler.add(first), scheduler.add(second)
    scheduler.done(scheduler.next().pieces)
    first.tokens.append(4), second.tokens.append(4)
    pieces = scheduler.next().pieces
    assert [piece.decodes for piece in pieces] == [True, True] and memory.pool.free == 4
    assert scheduler.make_room(pieces, 7, rows=2) == [3, 3]  # six rows are left for two
    assert memory.pool.free == 2
    for piece, accepted in zip(pieces, (2, 0), strict=True):
        scheduler.done([piece])
        scheduler.keep(replace(piece, drafts=(5, 6)), accepted)
        piece.sequence.tokens += [5] * (1 + accepted)
    memory.check(s.hold for s in scheduler.sequences())
    assert (first.hold.tokens, len(first.hold.pages)) == (6, 2) and (second.hold.tokens, len(second.hold.pages)) == (
        4,
        2,
    )
    pieces = scheduler.next().pieces
    scheduler.add(TokenSequence("c", [1] * 15, 15, 20))  # needs more pages than are free: the others take none
    scheduler.next()
    assert scheduler.waiting == 1 and scheduler.make_room(pieces, 7, rows=2) == [1, 3]
    first.limit_tokens = len(first.tokens) + 1
    assert scheduler.make_room(pieces[:1], 7, rows=1) == [0]


@pytest.mark.parametrize(
    "method, match", [("maybe", "unknown speculation method"), ("mtp", "draft head|recurrent|MTP")]
)
def test_what_cannot_be_had_is_an_error_when_strict_and_a_notice_otherwise(model, answer, method, match):
    with pytest.raises(LlmrunError, match=match):
        tiny_engine(model, spec=SpecConfig(method, strict=True))
    if method == "mtp":
        with tiny_engine(model, CpuBackend(), spec=SpecConfig(method), **SMALL) as engine:
            assert [n.code for n in engine.report().notices if n.code.startswith("spec")] == ["spec_unavailable"]
            assert ids_of(ask(engine, replace(GREEDY, max_tokens=9))) == answer[:9]
