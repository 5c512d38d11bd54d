"""The scheduler alone, on a real Memory: order, limits, and that every sequence ends with all pages back."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_engine.core.sequence import Sequence
from strata_engine.errors import ContextExceeded, OutOfMemory, QueueFull
from strata_engine.memory.kv import KvMemory
from strata_engine.memory.memory import Memory
from strata_engine.runtime.scheduler import Scheduler, SchedulerLimits, Work

LIMITS = SchedulerLimits(max_sequences=3, max_queue=100, batch_rows=8, context_tokens=40)


def scheduler(pages: int = 30, page_tokens: int = 4, **limits) -> Scheduler:
    memory = Memory([KvMemory(1, 2)], pages, page_tokens, "f16")
    return Scheduler(memory, SchedulerLimits(**{**LIMITS.__dict__, **limits}))


def sequence(name: str, prompt: int, most: int = 5, context: int = 40) -> Sequence:
    return Sequence(name, [1] * prompt, prompt, min(context, prompt + most))


def run(work: Work, of: Scheduler) -> None:
    """What the engine does with a step, without a model: every last row gives token 1, limits end a sequence."""
    of.done(work.pieces)
    for piece in work.pieces:
        assert piece.last == (piece.sequence.pending == 0)
        if piece.last:
            piece.sequence.tokens.append(1)
            if len(piece.sequence.tokens) >= piece.sequence.limit_tokens:
                of.finish(piece.sequence)


def check(of: Scheduler) -> None:
    of._memory.check(s.hold for s in of.sequences())


def drain(of: Scheduler, most_steps: int = 5000) -> int:
    steps = 0
    while (work := of.next()) is not None:
        assert work.pieces or work.impossible
        run(work, of)
        steps += 1
        assert steps < most_steps, "no end in sight"
    return steps


@given(st.integers(0, 2**32), st.integers(10, 24), st.integers(1, 12), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_every_sequence_ends_and_all_pages_come_back(seed, pages, batch_rows, max_sequences):
    draw = random.Random(seed)
    of = scheduler(pages, batch_rows=max(batch_rows, max_sequences), max_sequences=max_sequences)
    alive: list[Sequence] = []
    for number in range(draw.randint(1, 25)):
        for _ in range(draw.randint(0, 4)):
            work = of.next()
            if work is None:
                break
            assert sum(p.count for p in work.pieces) <= of.limits.batch_rows
            assert len({p.sequence.id for p in work.pieces}) == len(work.pieces) <= max_sequences
            assert not work.impossible
            run(work, of)
            check(of)
        alive.append(sequence(f"s{number}", draw.randint(1, 39), draw.randint(1, 60)))
        of.add(alive[-1])
        if draw.random() < 0.2:
            of.cancel(draw.choice(alive).id)
        of.take_cancelled()
        check(of)
    drain(of)
    check(of)
    assert of._memory.pool.used == 0 and not of.busy
    for one in alive:
        assert one.state == "done"
        assert one.cancelled or len(one.tokens) == one.limit_tokens


def test_a_prompt_is_cut_into_chunks_of_the_batch():
    of = scheduler()
    of.add(sequence("a", 20))
    counts = []
    while (work := of.next()) is not None and len(counts) < 3:
        counts.append((work.pieces[0].count, work.pieces[0].last))
        run(work, of)
    assert counts == [(8, False), (8, False), (4, True)]


def test_decode_rows_come_first_and_prompts_share_what_is_left():
    of = scheduler()
    of.add(sequence("a", 3))
    run(of.next(), of)
    of.add(sequence("b", 5)), of.add(sequence("c", 20))
    assert [(p.sequence.id, p.count) for p in of.next().pieces] == [("a", 1), ("b", 5), ("c", 2)]


def test_sequences_are_admitted_in_order_of_arrival_even_when_a_later_one_would_fit():
    of = scheduler(pages=10)
    of.add(sequence("long", 30)), of.add(sequence("longer", 20)), of.add(sequence("short", 1))
    assert {p.sequence.id for p in of.next().pieces} == {"long"}
    assert (of.running, of.waiting) == (1, 2)


def test_the_youngest_gives_way_when_pages_run_out():
    of = scheduler(pages=6, batch_rows=16)
    of.add(sequence("old", 8, 30)), of.add(sequence("young", 8, 30))
    while of.preemptions == 0:
        run(of.next(), of)
        check(of)
    waiting = [s.id for s in of.sequences() if s.state == "waiting"]
    assert waiting == ["young"]


def test_a_sequence_that_outgrows_the_whole_cache_is_reported_alone():
    of = scheduler(pages=3)
    of.add(sequence("a", 4, 30)), of.add(sequence("b", 2, 3))
    impossible, steps = [], 0
    while (work := of.next()) is not None:
        impossible += [s.id for s in work.impossible]
        run(work, of)
        steps += 1
        assert steps < 100
    assert impossible == ["a"]
    assert of._memory.pool.used == 0


def test_a_prompt_larger_than_the_cache_is_refused_at_once():
    with pytest.raises(OutOfMemory):
        scheduler(pages=3).add(sequence("a", 12))


@pytest.mark.parametrize(("prompt", "fits"), [(39, True), (40, False), (400, False)])
def test_a_prompt_must_leave_room_for_one_token(prompt, fits):
    of = scheduler()
    if fits:
        of.add(sequence("a", prompt))
        return
    with pytest.raises(ContextExceeded) as caught:
        of.add(sequence("a", prompt))
    assert caught.value.details == {"n_prompt_tokens": prompt, "n_ctx": 40}
    assert str(prompt) in caught.value.message and "40" in caught.value.message


def test_the_queue_counts_only_those_beyond_the_free_places():
    of = scheduler(max_queue=0)
    for number in range(3):
        of.add(sequence(f"s{number}", 2))
    with pytest.raises(QueueFull) as caught:
        of.add(sequence("s3", 2))
    assert caught.value.details == {"waiting": 3, "max_queue": 0}


def test_cancelling_what_is_not_there_says_so():
    of = scheduler()
    of.add(sequence("a", 2))
    assert of.cancel("a") and not of.cancel("b")
    assert [s.id for s in of.take_cancelled()] == ["a"]
    assert not of.cancel("a") and not of.busy
