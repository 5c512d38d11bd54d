"""What an engine tells of its speculation: in each Finish, in live numbers, in its report, and by its alarm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata_backends.cpu import CpuBackend
from strata_engine.events import Notice
from strata_engine.runtime import spec_meters
from tests.support.drafters import TestDrafter, always_wrong, drafting_engine, oracle
from tests.support.engines import GREEDY, finish_of, ids_of, ids_request, tiny_engine

PROMPT = (5, 9, 13, 5, 9)
PARAMS = replace(GREEDY, max_tokens=21)


@pytest.fixture(scope="module")
def answers(checkpoints):
    with tiny_engine(checkpoints["llama"], CpuBackend()) as engine:
        return {PROMPT: ids_of(list(engine.submit(ids_request(*PROMPT), PARAMS)))}


def asked(engine, params=PARAMS):
    return list(engine.submit(ids_request(*PROMPT), params))


def test_a_finish_counts_rounds_drafts_and_both_accept_lengths(checkpoints, answers):
    with drafting_engine(checkpoints["llama"], TestDrafter(oracle(answers), most=3), CpuBackend()) as engine:
        finish = finish_of(asked(engine))
    drafts = finish.drafts
    # 20 tokens after the prompt's own: five steps of 3 drafts and one token more
    assert (drafts.steps, drafts.rounds, drafts.drafted, drafts.accepted) == (5, 5, 15, 15)
    assert drafts.by_position == (5, 5, 5)
    assert drafts.lengths(finish.usage.completion_tokens) == (4.0, 4.2)
    assert drafts.plain_s is None  # no plain step ran


def test_live_numbers_and_the_report_add_up_over_sequences(checkpoints, answers):
    with drafting_engine(checkpoints["llama"], TestDrafter(always_wrong(answers), most=3), CpuBackend()) as engine:
        finishes = [finish_of(asked(engine)) for _ in range(2)]
        load, report = engine.load_numbers(), engine.report()
    assert [(f.drafts.accepted, f.drafts.steps) for f in finishes] == [(0, 20)] * 2
    assert load.spec_rounds_total == sum(f.drafts.rounds for f in finishes)
    assert load.spec_drafted_total == sum(f.drafts.drafted for f in finishes)
    assert (load.spec_accepted_total, load.spec_steps_total, load.spec_tokens_total) == (0, 40, 40)
    assert report.speculation["drafters"] == {"ngram": {"kind": "test", "most": 3}}
    assert report.speculation["counts"]["by_drafter"]["ngram"]["rounds"] == load.spec_rounds_total


def test_one_sequence_can_go_without_drafts_and_gives_the_same_tokens(checkpoints, answers):
    drafter = TestDrafter(oracle(answers), most=3)
    with drafting_engine(checkpoints["llama"], drafter, CpuBackend()) as engine:
        events = asked(engine, replace(PARAMS, speculate=False))
        plain = finish_of(events).drafts
        assert (ids_of(events), drafter.rounds) == (answers[PROMPT], 0)
        assert (plain.steps, plain.rounds) == (20, 0)
        after = finish_of(asked(engine)).drafts
    # its plain steps were measured, so that each later answer knows its gain
    assert plain.plain_s > 0
    assert after.rounds == 5 and after.plain_s > 0


def test_an_engine_without_speculation_says_nothing_of_it(checkpoints):
    with tiny_engine(checkpoints["llama"], CpuBackend()) as engine:
        assert finish_of(asked(engine)).drafts is None
        assert engine.report().speculation == {}
        assert engine.load_numbers().spec_steps_total == 0


def test_the_alarm_reaches_the_sequence_and_the_report(checkpoints, answers, monkeypatch):
    monkeypatch.setattr(spec_meters, "ALARM_ROUNDS", 8)
    with drafting_engine(checkpoints["llama"], TestDrafter(always_wrong(answers), most=3), CpuBackend()) as engine:
        told = [e for e in asked(engine) if isinstance(e, Notice) and e.code == "spec_alarm"]
        assert [e for e in asked(engine) if isinstance(e, Notice) and e.code == "spec_alarm"] == []  # once is enough
        kept = [n for n in engine.report().notices if n.code == "spec_alarm"]
    assert told == kept and len(told) == 1
    assert "kind test" in told[0].message
