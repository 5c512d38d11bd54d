"""Rows that a step runs before anyone knows whether they count: recurrent ops keep the bits of plain decoding."""

from __future__ import annotations

import random as plain_random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from strata_kernels.ops import DeltaRule, Ops, Rows
from tests.kernels.test_ops_delta import advance, convolve, inputs_of, make_rows, make_rule, state_of
from tests.kernels.test_ops_streams import by_definition, hashed
from tests.support.op_cases import random

# heads, widths: whole registers and blocks, parts of them, more columns than a block has
RULES = pytest.mark.parametrize(("heads", "widths"), [((2, 6), (8, 5)), ((1, 2), (64, 80)), ((2, 4), (33, 64))])
LENGTH = 40

Inputs = tuple[Tensor, Tensor, Tensor]
Off = Callable[[int], int]  # what a fault makes of `fold`


def right(fold: int) -> int:
    return fold


def cut(inputs: Inputs, piece: slice) -> Inputs:
    qkv, a, b = inputs
    return qkv[piece], a[piece], b[piece]


def joined(*parts: Inputs) -> Inputs:
    qkv, a, b = (torch.cat(same) for same in zip(*parts, strict=True))
    return qkv, a, b


@dataclass
class Decoding:
    """One sequence that is decoded with drafts: of each step's rows some count, the others are noise."""

    truth: Inputs
    noise: Inputs
    slot: int
    done: int = 0  # rows that count so far
    fold: int = 0
    outs: list[Tensor] = field(default_factory=list)

    def rows(self, count: int, kept: int) -> Inputs:
        """The next `count` rows, of which only `kept` are the sequence's own."""
        false = slice(self.done + kept, self.done + count)
        return joined(cut(self.truth, slice(self.done, self.done + kept)), cut(self.noise, false))

    def take(self, out: Tensor, keep: int, kept: int) -> None:
        self.outs.append(out[:kept])
        self.done, self.fold = self.done + kept, kept - keep


@dataclass(frozen=True)
class Bench:
    """One rule on one maker of operations, with a state and room for `most` drafts in each slot."""

    ops: Ops
    rule: DeltaRule
    state: Tensor
    pending: Tensor

    @classmethod
    def make(cls, ops: Ops, heads: tuple[int, int], widths: tuple[int, int], most: int) -> Bench:
        rule = make_rule(heads, widths)
        return cls(ops, rule, state_of(rule, 3), torch.full((3, most, rule.pending_width), float("nan")))

    def decoding(self, slot: int, length: int, seed: int) -> Decoding:
        extra = length + self.pending.shape[1] + 1
        return Decoding(inputs_of(self.rule, length, seed), inputs_of(self.rule, extra, seed + 50), slot)

    def step(self, plan: list[tuple[Decoding, int, int, int]], off: Off = right) -> None:
        """One step. `plan`: (sequence, rows, certain rows, rows that turn out to count)."""
        places = [(n, own.done + i) for n, (own, count, _, _) in enumerate(plan) for i in range(count)]
        plain = make_rows(places, [own.slot for own, *_ in plan])
        keep = torch.tensor([keep for _, _, keep, _ in plan], dtype=torch.int32)
        fold = torch.tensor([off(own.fold) for own, *_ in plan], dtype=torch.int32)
        rows = Rows(plain.positions, plain.sequences, plain.slots, plain.pages, plain.states, keep=keep, fold=fold)
        inputs = joined(*(own.rows(count, kept) for own, count, _, kept in plan))
        out, at = self.run(inputs, rows), 0
        for own, count, keep_of, kept in plan:
            own.take(out[at : at + count], keep_of, kept)
            at += count

    def run(self, inputs: Inputs, rows: Rows) -> Tensor:
        qkv, a, b = (part.clone() for part in inputs)
        out = torch.full((len(qkv), self.rule.value_heads, self.rule.value_width), float("nan"))
        self.ops.begin()
        self.ops.delta_rule(qkv, a, b, self.rule, self.state, rows, out, self.pending)
        self.ops.end().run()
        return out

    def plain(self, own: Decoding) -> tuple[Tensor, Tensor]:
        """Outputs and state of the same rows, run one by one where nothing is ever uncertain."""
        state = state_of(self.rule, 1)
        outs = [
            advance(self.ops, cut(own.truth, slice(t, t + 1)), self.rule, state, make_rows([(0, t)], [0]))
            for t in range(own.done)
        ]
        return torch.cat(outs), state[0]


def decode(bench: Bench, own: Decoding, draw: plain_random.Random, off: Off = right) -> None:
    """A prompt, steps with random drafts of which random many count, a plain row at the end."""
    most, length = bench.pending.shape[1], own.truth[0].shape[0]
    bench.step([(own, 3, 3, 3)], off)
    while own.done < length - 1:
        count = draw.randint(1, most + 1)
        bench.step([(own, count, 1, min(draw.randint(1, count), length - 1 - own.done))], off)
    bench.step([(own, 1, 1, 1)], off)


@RULES
@pytest.mark.parametrize("seed", range(3))
def test_drafts_leave_the_bits_of_plain_decoding(ops, heads, widths, seed):
    bench = Bench.make(ops, heads, widths, most=5)
    own = bench.decoding(1, LENGTH, seed)
    decode(bench, own, plain_random.Random(seed))
    outs, state = bench.plain(own)
    assert torch.equal(torch.cat(own.outs), outs)
    assert torch.equal(bench.state[1], state)
    assert bench.state[[0, 2]].isnan().all()
    assert bench.pending[[0, 2]].isnan().all()


@pytest.mark.parametrize("fault", [1, -1], ids=["one too many", "one too few"])
def test_folding_a_wrong_number_of_rows_is_noticed(ops, fault):
    """What the other tests compare does change: the control of their equality."""
    bench = Bench.make(ops, (1, 2), (64, 80), most=5)
    own = bench.decoding(1, LENGTH, 0)
    decode(bench, own, plain_random.Random(0), lambda fold: min(5, max(0, fold + fault)) if fold else 0)
    outs, state = bench.plain(own)
    assert not torch.equal(torch.cat(own.outs), outs)
    assert not torch.equal(bench.state[1], state)


def test_counting_rejected_rows_is_noticed(ops):
    """The fault of engines that cut keys and values back but not the state: all rows of a step are taken as certain."""
    bench = Bench.make(ops, (1, 2), (64, 80), most=5)
    own = bench.decoding(1, 12, 0)
    bench.step([(own, 3, 3, 3)])
    bench.step([(own, 5, 5, 2)], lambda fold: 0)
    own.fold = 0
    bench.step([(own, 1, 1, 1)])
    outs, state = bench.plain(own)
    assert torch.equal(torch.cat(own.outs)[:5], outs[:5])
    assert not torch.equal(torch.cat(own.outs)[5:], outs[5:])
    assert not torch.equal(bench.state[1], state)


@RULES
def test_a_step_of_drafts_prompts_and_plain_rows(ops, heads, widths):
    bench, draw = Bench.make(ops, heads, widths, most=4), plain_random.Random(7)
    first, second, third = (bench.decoding(slot, 30, 20 * slot) for slot in range(3))
    bench.step([(first, 2, 2, 2), (second, 6, 6, 6)])
    for count in (7, 4, 1, 6):  # the third one's prompt, and others that hold no drafts in some steps
        widths_of = draw.randint(1, 5), draw.choice((1, 3))
        plans = [(own, width, 1, draw.randint(1, width)) for own, width in zip((first, second), widths_of, strict=True)]
        bench.step([plans[0], (third, count, count, count), plans[1]])
    for own in (first, second, third):
        bench.step([(own, 1, 1, 1)])
        outs, state = bench.plain(own)
        assert torch.equal(torch.cat(own.outs), outs)
        assert torch.equal(bench.state[own.slot], state)


def test_more_drafts_than_rows_are_made_ready_together(ops):
    bench = Bench.make(ops, (1, 2), (16, 48), most=40)
    own = bench.decoding(0, 140, 3)
    bench.step([(own, 33, 33, 33)])
    bench.step([(own, 41, 1, 41)])
    bench.step([(own, 41, 1, 30)])
    bench.step([(own, 35, 34, 34)])
    bench.step([(own, 1, 1, 1)])
    outs, state = bench.plain(own)
    assert torch.equal(torch.cat(own.outs), outs)
    assert torch.equal(bench.state[0], state)


def test_a_sequence_that_begins_knows_no_pending_rows(ops):
    bench = Bench.make(ops, (1, 2), (64, 80), most=3)
    before, own = bench.decoding(1, 10, 1), bench.decoding(1, 10, 2)
    bench.step([(before, 4, 1, 4)])
    own.fold = before.fold
    bench.step([(own, 4, 1, 3)])
    bench.step([(own, 1, 1, 1)])
    outs, state = bench.plain(own)
    assert torch.equal(torch.cat(own.outs), outs)
    assert torch.equal(bench.state[1], state)


def test_no_row_need_be_certain(ops):
    bench = Bench.make(ops, (1, 2), (64, 80), most=3)
    own = bench.decoding(1, 10, 1)
    bench.step([(own, 2, 2, 2)])
    bench.step([(own, 3, 0, 2)])
    bench.step([(own, 3, 0, 0)])
    bench.step([(own, 1, 1, 1)])
    outs, state = bench.plain(own)
    assert torch.equal(torch.cat(own.outs), outs)
    assert torch.equal(bench.state[1], state)


def test_the_thread_count_does_not_matter(threaded_maker):
    found = []
    for threads in (1, 2, 5):
        bench = Bench.make(threaded_maker.make(threads), (1, 2), (64, 80), most=5)
        own = bench.decoding(1, LENGTH, 0)
        decode(bench, own, plain_random.Random(0))
        found.append((torch.cat(own.outs), bench.state[1], bench.pending[1]))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize(
    ("keep", "fold"), [(5, 0), (-1, 0), (1, 4), (1, -1), (1, 3)], ids=["rows", "below 0", "room", "less", "position"]
)
def test_impossible_numbers_of_rows_are_refused(ops, keep, fold):
    """More certain rows than there are, more drafts or pending rows than room, more pending rows than came before."""
    bench, numbers = Bench.make(ops, (1, 1), (8, 8), most=3), torch.tensor([[keep], [fold]], dtype=torch.int32)
    where = make_rows([(0, t) for t in range(2, 6)], [1])
    rows = Rows(
        where.positions, where.sequences, where.slots, where.pages, where.states, keep=numbers[0], fold=numbers[1]
    )
    with pytest.raises(IndexError):
        bench.run(inputs_of(bench.rule, 4), rows)


def test_uncertain_rows_need_a_place_to_wait(ops):
    rule, one = make_rule((1, 1), (8, 8)), torch.ones(1, dtype=torch.int32)
    where, (qkv, a, b) = make_rows([(0, 0)], [0]), inputs_of(rule, 1)
    rows = Rows(where.positions, where.sequences, where.slots, where.pages, where.states, keep=one, fold=one)
    out, state = torch.empty(1, 1, 8), torch.zeros(1, 1, 8, 8)
    for pending in (None, torch.zeros(2, 3, rule.pending_width), torch.zeros(1, 3, rule.pending_width + 1)):
        with pytest.raises(ValueError, match="delta_rule"):
            ops.delta_rule(qkv, a, b, rule, state, rows, out, pending)


# -- rings: rows that were taken back are written over ----------------------------------------------------------------


@pytest.mark.parametrize(("kernel", "dilation"), [(4, 1), (4, 3), (2, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_a_convolution_forgets_rows_that_do_not_count(ops, kernel, dilation, seed):
    draw, most, reach = plain_random.Random(seed), 5, (kernel - 1) * dilation
    x, noise, weight = random(60, 70, seed=1), random(66, 70, seed=2), random(70, kernel, seed=3)
    past = torch.full((2, reach + most, 70), float("nan"))
    done, outs = 0, []
    while done < 60:
        count = draw.randint(1, most + 1)
        kept = min(draw.randint(1, count), 60 - done)
        rows = make_rows([(0, done + i) for i in range(count)], [1])
        seen = torch.cat([x[done : done + kept], noise[done + kept : done + count]])
        outs.append(convolve(ops, seen, weight, past, rows, True, dilation)[:kept])
        done += kept
    whole = convolve(
        ops, x, weight, torch.zeros(1, reach, 70), make_rows([(0, t) for t in range(60)], [0]), True, dilation
    )
    assert torch.equal(torch.cat(outs), whole)


def test_a_ring_without_room_for_drafts_is_noticed(ops):
    x, weight, outs = random(12, 5, seed=1), random(5, 4, seed=3), []
    past = torch.zeros(1, 3, 5)
    for first, count in ((0, 4), (4, 5), (6, 1)):  # of the five only two count
        outs.append(
            convolve(
                ops, x[first : first + count], weight, past, make_rows([(0, first + i) for i in range(count)], [0])
            )
        )
    whole = convolve(ops, x, weight, torch.zeros(1, 3, 5), make_rows([(0, t) for t in range(12)], [0]))
    assert not torch.equal(outs[2][0], whole[6])


@pytest.mark.parametrize("seed", range(3))
def test_hashed_ngrams_forget_rows_that_do_not_count(ops, seed):
    draw = plain_random.Random(seed)
    ids, past, done, found = draw.choices(range(8), k=60), torch.full((3, 2 + 5), 7, dtype=torch.int32), 0, []
    while done < 60:
        count = draw.randint(1, 6)
        kept = min(draw.randint(1, count), 60 - done)
        seen = ids[done : done + kept] + draw.choices(range(8), k=count - kept)
        found += hashed(ops, past, [(0, done, seen)], [2])[:kept].tolist()
        done += kept
    assert found == [by_definition(ids, n) for n in range(60)]
