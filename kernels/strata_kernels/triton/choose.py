"""The largest of a row of logits, in two passes: programs over parts of a row, then one program a row."""

import triton
import triton.language as tl

NO_INDEX = tl.constexpr(2147483647)


@triton.jit
def argmax_parts(logits, most, index, total, VOCAB: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr):
    """Of each part of a row: the maximum (NaN counts as infinity), its lowest index, the sum of exp(x - maximum)."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * PART + tl.arange(0, PART)
    value = tl.load(logits + row * VOCAB + at, mask=at < VOCAB, other=float("-inf"))
    ranked = tl.where(value != value, float("inf"), value)
    top = tl.max(ranked, axis=0)
    first = tl.min(tl.where((ranked == top) & (at < VOCAB), at, NO_INDEX), axis=0)
    base = tl.where(top == float("-inf"), 0.0, top)
    out = row * PARTS + part
    tl.store(most + out, top)
    tl.store(index + out, first)
    tl.store(total + out, tl.sum(tl.exp(value - base), axis=0))


@triton.jit
def argmax_rows(most, index, total, chosen, share, PARTS: tl.constexpr, BLOCK: tl.constexpr, SHARE: tl.constexpr):
    """Of each row: the lowest index of the largest part, and its softmax."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(most + row * PARTS + at, mask=at < PARTS, other=float("-inf"))
    top = tl.max(value, axis=0)
    found = tl.load(index + row * PARTS + at, mask=at < PARTS, other=NO_INDEX)
    tl.store(chosen + row, tl.min(tl.where(value == top, found, NO_INDEX), axis=0))
    if SHARE:
        base = tl.where(top == float("-inf"), 0.0, top)
        sums = tl.load(total + row * PARTS + at, mask=at < PARTS, other=0.0)
        tl.store(share + row, 1.0 / tl.sum(sums * tl.exp(value - base), axis=0))


@triton.jit
def largest_parts(values, ids, top_values, top_ids, COUNT: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
                  TOP: tl.constexpr, NUMBERED: tl.constexpr):  # fmt: skip
    """Of each part of a row of COUNT values: its TOP largest in order, the lowest id first among equals.

    `ids` of the values; without NUMBERED their places are. NaN counts as infinity. What a part lacks of TOP values is
    -infinity with id NO_INDEX.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * PART + tl.arange(0, PART)
    value = tl.load(values + row * COUNT + at, mask=at < COUNT, other=float("-inf"))
    value = tl.where(value != value, float("inf"), value)
    number = at
    if NUMBERED:
        number = tl.load(ids + row * COUNT + at, mask=at < COUNT, other=NO_INDEX)
    number = tl.where(at < COUNT, number, NO_INDEX)
    out = (row * PARTS + part) * TOP
    for place in range(0, TOP):
        top = tl.max(value, axis=0)
        first = tl.min(tl.where(value == top, number, NO_INDEX), axis=0)
        tl.store(top_values + out + place, top)
        tl.store(top_ids + out + place, first)
        taken = number == first
        value = tl.where(taken, float("-inf"), value)
        number = tl.where(taken, NO_INDEX, number)
