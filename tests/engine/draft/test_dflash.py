"""DFlash drafters against an oracle, row by row: layouts, windows, chunks, batches; drafts leave nothing behind."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from strata_engine.draft.base import Ask, Proposal
from strata_kernels.native import NativeOps
from strata_kernels.reference.ops import ReferenceOps
from tests.support.dflash_case import Case
from tests.support.dflash_oracle import VOCAB

SLIDING = ["sliding_attention"] * 2
KINDS = {
    "full": {},
    "full, causal": {"is_causal": True},
    "sliding, causal": {"layer_types": SLIDING, "sliding_window": 7},
    "sliding, both ways": {"layer_types": SLIDING, "sliding_window": 9, "own": {"causal": False}},
    "mixed": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5},
    "from the anchor": {"own": {"sample_from_anchor": True}},
}
KIND = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(params=["reference", "native"])
def ops(request):
    return ReferenceOps() if request.param == "reference" else NativeOps(2)


def make(ops, kind="full", **options):
    return Case(ops, {key: dict(v) if isinstance(v, dict) else v for key, v in KINDS[kind].items()}, **options)


def logits_of(case):
    """What the last block's rows gave, f32 [rows, V]."""
    return torch.from_numpy(case.ops.host(case.drafter._blocks._logits).copy())


@KIND
@pytest.mark.parametrize("length", [1, 7, 8, 9, 40])
def test_every_row_equals_the_oracle(ops, kind, length):
    case = make(ops, kind)
    sequence = case.ready("a", length)
    [found] = case.propose(sequence)
    logits, tokens = case.wanted(sequence)
    assert torch.allclose(logits_of(case)[: len(logits)].double(), logits, atol=2e-4)
    gap = logits.topk(2).values.diff().abs().min()
    assert gap > 1e-3, "the case is a tie; draw another"
    assert found.tokens == tuple(tokens)
    wanted = torch.softmax(logits, -1).amax(-1)
    assert np.allclose(found.confidence, wanted, atol=1e-4)


@KIND
def test_the_context_is_the_same_however_it_was_cut(ops, kind):
    whole = make(ops, kind)
    first = whole.ready("a", 41)
    wanted = whole.propose(first)
    for chunks in ([1] * 41, [20, 20, 1], [3, 38]):
        case = make(ops, kind)
        assert case.propose(case.ready("a", 41, chunks)) == wanted
        assert torch.equal(logits_of(case), logits_of(whole))


@KIND
def test_a_draft_leaves_nothing_behind(ops, kind):
    case = make(ops, kind)
    sequence = case.ready("a", 20)
    wanted = case.propose(sequence)
    assert case.propose(sequence) == wanted
    for kept in (3, 1, 6):  # of the rows that ran: their own tokens follow, whatever was guessed
        sequence.tokens += np.random.default_rng(kept).integers(0, VOCAB - 1, kept).tolist()
        case.observe(sequence, kept)
        fresh = make(ops, kind)
        again = fresh.sequence("a", 20)
        again.tokens[:] = sequence.tokens
        fresh.observe(again, len(again.tokens) - 1)
        assert case.propose(sequence) == fresh.propose(again)
        assert torch.equal(logits_of(case), logits_of(fresh))


def test_sequences_do_not_matter_to_each_other(ops):
    case = make(ops, "mixed", rows=64)
    sequences = [case.ready(name, length, seed=length) for name, length in (("a", 5), ("b", 33), ("c", 16))]
    together = case.propose(*sequences)
    for sequence, found in zip(sequences, together, strict=True):
        assert case.propose(sequence) == [found]
    assert len({one.tokens for one in together}) == 3


def test_more_sequences_than_a_step_takes(ops):
    case = make(ops, rows=13)  # two blocks of 6 rows
    sequences = [case.ready(name, 9, seed=seed) for seed, name in enumerate("abcd")]
    assert [case.propose(one)[0] for one in sequences] == case.propose(*sequences)


@KIND
def test_fewer_drafts_than_a_block_has(ops, kind):
    case = make(ops, kind)
    sequence = case.ready("a", 20)
    full = case.propose(sequence)[0].tokens
    for most in (1, 2, 4):
        [found] = case.propose(sequence, most=most)
        assert found.tokens == tuple(case.wanted(sequence, most)[1])
        if "causal" in kind:  # rows do not see those after them
            assert found.tokens == full[:most]


def test_only_layers_that_look_both_ways_see_later_rows(ops):
    for kind, same in (("full", False), ("full, causal", True), ("sliding, causal", True), ("mixed", False)):
        case = make(ops, kind)
        sequence = case.ready("a", 20)
        case.propose(sequence, most=5)
        long = logits_of(case)[:2]
        case.propose(sequence, most=2)
        assert torch.equal(logits_of(case)[:2], long) == same, kind


def test_taps_older_than_the_window_do_not_count(ops):
    for length, changed, same in ((20, 5, True), (20, 12, True), (20, 14, False), (20, 19, False)):
        case = make(ops, "sliding, causal")  # row 20 sees 14.., however many layers there are
        case.propose(case.ready("a", length))
        wanted = logits_of(case)
        other = make(ops, "sliding, causal")
        sequence = other.sequence("a", length)
        other.taps["a"][changed] += 1
        other.observe(sequence, length)
        other.propose(sequence)
        assert torch.equal(logits_of(other), wanted) == same, changed


def test_a_sequence_without_all_its_taps_gets_no_guesses_until_it_has_them():
    case = make(ReferenceOps())
    sequence = case.sequence("a", 20)
    case.memory.commit(sequence.hold, 20)  # computed, but not seen
    assert case.propose(sequence) == [Proposal()]
    sequence.hold.tokens = 0
    case.observe(sequence, 20)
    assert case.propose(sequence)[0].tokens


def test_a_prefix_without_taps_is_a_shorter_context(ops):
    case = make(ops)
    sequence = case.sequence("a", 30)
    case.memory.commit(sequence.hold, 16)  # two pages from a cache
    case.observe(sequence, 14)
    [found] = case.propose(sequence)
    short = make(ops)
    other = short.sequence("b", 14)
    other.tokens[:] = sequence.tokens[16:]
    short.taps["b"] = case.taps["a"][16:]
    short.observe(other, 14)
    assert short.propose(other)[0].tokens == found.tokens  # positions are relative


def test_guesses_end_where_the_drafter_is_not_sure():
    case = make(ReferenceOps())
    sequence = case.ready("a", 20)
    [full] = case.propose(sequence)
    floor = sorted(full.confidence)[2]
    strict = make(ReferenceOps(), p_min=floor)
    [found] = strict.propose(strict.ready("a", 20))
    count = next(n for n, share in enumerate([*full.confidence, 0.0]) if share < floor)
    assert found.tokens == full.tokens[:count] and len(found.tokens) < len(full.tokens)


def test_random_orders_of_work_end_in_the_same_guesses(ops):
    random.seed(3)
    case, plain = make(ops, "mixed"), make(ops, "mixed")
    sequences = [case.sequence(name, 40, seed) for seed, name in enumerate("abc")]
    while any(s.hold.tokens < 40 for s in sequences):
        sequence = random.choice([s for s in sequences if s.hold.tokens < 40])
        case.observe(sequence, random.randint(1, min(9, 40 - sequence.hold.tokens)))
        if random.random() < 0.3:  # guesses in between, for whom they may be made
            case.drafter.propose([Ask(s, 3) for s in sequences if s.hold.tokens])
    for seed, sequence in enumerate(sequences):
        assert case.propose(sequence) == plain.propose(plain.ready(sequence.id, 40, seed=seed))
