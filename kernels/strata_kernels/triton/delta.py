"""The gated delta rule, row after row: one program a sequence, value head and block of value columns.

A slot holds each head's matrix turned: [Dv, Dk], so that a program reads one piece of memory and sums along lanes.
"""

import triton
import triton.language as tl

from strata_kernels.triton.gates import sigmoid
from strata_kernels.triton.runs import begins_run, run_of, state_slot


@triton.jit
def softplus(x):
    """log(1 + e^x), also where e^x is small."""
    power = tl.exp(tl.minimum(x, 20.0))
    small = power * (1.0 - power * (0.5 - power * (0.333333333 - power * 0.25)))
    return tl.where(x > 20.0, x, tl.where(power < 0.01, small, tl.log(1.0 + power)))


@triton.jit
def unit(x):
    """x divided by the root of its sum of squares + 1e-6."""
    return x / tl.sqrt(tl.sum(x * x, axis=0) + 1e-6)


@triton.jit
def uncertain(keep, fold, own, position, rows, MOST: tl.constexpr):
    """How many rows are certain, how many pending ones come first; -1 as the former where that cannot be."""
    kept = rows
    folded = rows * 0
    if MOST > 0:
        kept = tl.load(keep + own)
        folded = tl.where(position > 0, tl.load(fold + own), 0)
        right = (kept >= 0) & (kept <= rows) & (rows <= kept + MOST)
        right = right & (folded >= 0) & (folded <= tl.minimum(position, MOST))
        kept = tl.where(right, kept, -1)
    return kept, folded


@triton.jit
def row_part(fresh, waiting, old, at, inside, MOST: tl.constexpr):
    """Elements of a row of this step, or of a pending one."""
    if MOST > 0:
        value = tl.load(fresh + at, mask=inside & (old == 0), other=0.0)
        return value + tl.load(waiting + at, mask=inside & old, other=0.0)
    return tl.load(fresh + at, mask=inside, other=0.0)


@triton.jit
def row_number(fresh, waiting, old, MOST: tl.constexpr):
    """One number of a row of this step, or of a pending one."""
    if MOST > 0:
        return tl.load(fresh, mask=old == 0, other=0.0) + tl.load(waiting, mask=old, other=0.0)
    return tl.load(fresh)


@triton.jit
def delta_rule(
    qkv, a, b, decay, dt_bias, state, pending, positions, sequences, states, keep, fold, out, count, sequence_count,
    slots, scale, KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, TILED: tl.constexpr, MOST: tl.constexpr, BY_ROW: tl.constexpr, SCAN: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr
):  # fmt: skip
    """`MOST`: rows that may be uncertain. `BY_ROW`: a program a row, that of a sequence's first one does them all."""
    own = tl.program_id(0)
    if BY_ROW:
        if not begins_run(sequences, own):
            return
        own = tl.load(sequences + own)
    head = tl.program_id(1)
    first, end = run_of(sequences, own, count, SCAN)
    if first >= end:
        return
    slot = state_slot(states, own, sequence_count, slots)
    position = tl.load(positions + first)
    kept = end - first
    folded = kept * 0
    if slot >= 0:
        kept, folded = uncertain(keep, fold, own, position, end - first, MOST)
    key = tl.arange(0, KEYS)
    column = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    in_keys, in_values = key < KEY_WIDTH, column < VALUE_WIDTH
    target = out + head * VALUE_WIDTH + column
    if (slot < 0) | (kept < 0):
        for i in range(0, end - first):
            r = first + i
            nothing = tl.full([VALUES], float("nan"), tl.float32)
            tl.store(target + r.to(tl.int64) * (VALUE_HEADS * VALUE_WIDTH), nothing, mask=in_values)
        return
    key_head = head % KEY_HEADS if TILED else head // (VALUE_HEADS // KEY_HEADS)
    place = (slot.to(tl.int64) * VALUE_HEADS + head) * (KEY_WIDTH * VALUE_WIDTH)
    place = state + place + column[:, None] * KEY_WIDTH + key[None, :]
    held = in_values[:, None] & in_keys[None, :]
    matrix = tl.load(place, mask=held & (position > 0), other=0.0)
    rate, bias = tl.load(decay + head), tl.load(dt_bias + head)
    width: tl.constexpr = 2 * KEY_HEADS * KEY_WIDTH + VALUE_HEADS * VALUE_WIDTH
    values_at: tl.constexpr = KEY_HEADS * KEY_WIDTH  # in a pending row
    gates_at: tl.constexpr = values_at + VALUE_HEADS * VALUE_WIDTH
    for i in range(0, folded + end - first):
        if MOST > 0:
            if i == folded + kept:  # what follows are drafts
                tl.store(place, matrix, mask=held)
        old = i < folded
        r = (first + i - folded).to(tl.int64)
        fresh = qkv + r * width
        waiting = pending
        if MOST > 0:
            waiting = pending + (slot.to(tl.int64) * MOST + i) * (gates_at + 2 * VALUE_HEADS)
        q = tl.load(fresh + key_head * KEY_WIDTH + key, mask=in_keys & (old == 0), other=0.0)
        k = row_part(fresh + values_at, waiting, old, key_head * KEY_WIDTH + key, in_keys, MOST)
        v = row_part(fresh + values_at, waiting, old, values_at + head * VALUE_WIDTH + column, in_values, MOST)
        step = row_number(a + r * VALUE_HEADS + head, waiting + gates_at + head, old, MOST)
        open = row_number(b + r * VALUE_HEADS + head, waiting + gates_at + VALUE_HEADS + head, old, MOST)
        q, k = unit(q) * scale, unit(k)
        matrix = matrix * tl.exp(rate * softplus(step + bias))
        change = sigmoid(open) * (v - tl.sum(matrix * k[None, :], axis=1))
        matrix = matrix + change[:, None] * k[None, :]
        result = tl.sum(matrix * q[None, :], axis=1)
        tl.store(target + r * (VALUE_HEADS * VALUE_WIDTH), result, mask=in_values & (old == 0))
    if kept == end - first:
        tl.store(place, matrix, mask=held)


@triton.jit
def delta_wait(
    qkv, a, b, pending, positions, sequences, states, keep, fold, count, sequence_count, slots, SKIP: tl.constexpr,
    LINE: tl.constexpr, HEADS: tl.constexpr, MOST: tl.constexpr, SCAN: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The rows that are not certain wait: keys and values (a row without its `SKIP` queries), a, b.

    A launch of its own, because `delta_rule` reads what waits from many programs.
    """
    row = tl.program_id(0)
    own = tl.load(sequences + row)
    later = row + MOST
    if (later < count) & (tl.load(sequences + later, mask=later < count, other=0) == own):
        return  # too far from the end
    slot = state_slot(states, own, sequence_count, slots)
    if slot < 0:
        return
    first, end = run_of(sequences, own, count, SCAN)
    kept, folded = uncertain(keep, fold, own, tl.load(positions + first), end - first, MOST)
    if (kept < 0) | (row - first < kept):
        return
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    r = row.to(tl.int64)
    value = tl.load(qkv + r * (SKIP + LINE) + SKIP + at, mask=at < LINE, other=0.0)
    value += tl.load(a + r * HEADS + at - LINE, mask=(at >= LINE) & (at < LINE + HEADS), other=0.0)
    ending = at - LINE - HEADS
    value += tl.load(b + r * HEADS + ending, mask=(ending >= 0) & (ending < HEADS), other=0.0)
    place = (slot.to(tl.int64) * MOST + row - first - kept) * (LINE + 2 * HEADS)
    tl.store(pending + place + at, value, mask=ending < HEADS)
