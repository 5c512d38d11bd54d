"""Which experts a row takes, and the (row, choice) pairs of many rows sorted by expert: all of it on the device."""

import triton
import triton.language as tl


@triton.jit
def route(
    logits, ids, weights, EXPERTS: tl.constexpr, TOP: tl.constexpr, RENORMALISE: tl.constexpr, BLOCK: tl.constexpr,
    PICKS: tl.constexpr
):  # fmt: skip
    """The TOP largest of a row's softmax, the largest first and the lowest number first among equals."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    score = tl.load(logits + row * EXPERTS + at, mask=at < EXPERTS, other=float("-inf"))
    power = tl.exp(score - tl.max(score, axis=0))
    share = power / tl.sum(power, axis=0)
    # whole numbers in the order of the scores, unlike each other: behind the score stands how low the number is
    number = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)
    number = tl.where(number < 0, number ^ 0x7FFFFFFF, number)
    number = tl.where(score == score, number, -2147483647)  # what is no number comes last
    rank = number.to(tl.int64) * 65536 + (65535 - at)
    rank = tl.where(at < EXPERTS, rank, -(1 << 62))
    pick = tl.arange(0, PICKS)
    numbers = tl.zeros([PICKS], tl.int32)
    picked = tl.zeros([PICKS], tl.float32)
    for choice in range(0, TOP):
        found = 65535 - (tl.max(rank, axis=0) & 65535).to(tl.int32)
        weight = tl.sum(tl.where(at == found, share, 0.0), axis=0)
        rank = tl.where(at == found, -(1 << 62), rank)
        numbers = tl.where(pick == choice, found, numbers)
        picked = tl.where(pick == choice, weight, picked)
    if RENORMALISE:
        picked = picked / tl.sum(picked, axis=0)
    tl.store(ids + row * TOP + pick, numbers, mask=pick < TOP)
    tl.store(weights + row * TOP + pick, picked, mask=pick < TOP)


@triton.jit
def expert_counts(ids, counts, pairs, BLOCK: tl.constexpr):
    """counts[e]: pairs that chose expert e."""
    own = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.int32)
    for start in range(0, pairs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += (tl.load(ids + at, mask=at < pairs, other=-1) == own).to(tl.int32)
    tl.store(counts + own, tl.sum(total, axis=0))


@triton.jit
def expert_plan(
    ids, counts, order, place, tiles, pairs, EXPERTS: tl.constexpr, ROWS: tl.constexpr, ALL: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    """Pairs sorted by expert, in the order of rows: order[slot] = pair, place[pair] = slot.

    tiles: how many there are, then of each its expert, its first slot and the slot after the last of its expert; a tile
    is up to ROWS slots of one expert.
    """
    own = tl.program_id(0)
    number = tl.arange(0, ALL)
    count = tl.load(counts + number, mask=number < EXPERTS, other=0)
    each = (count + (ROWS - 1)) // ROWS
    first = tl.sum(tl.where(number < own, count, 0), axis=0)
    before = tl.sum(tl.where(number < own, each, 0), axis=0)
    mine = tl.sum(tl.where(number == own, each, 0), axis=0)
    end = first + tl.sum(tl.where(number == own, count, 0), axis=0)
    if own == 0:
        tl.store(tiles, tl.sum(each, axis=0))
    for start in range(0, mine, 16):
        i = start + tl.arange(0, 16)
        entry = tiles + 1 + 3 * (before + i)
        tl.store(entry, own + i * 0, mask=i < mine)
        tl.store(entry + 1, first + i * ROWS, mask=i < mine)
        tl.store(entry + 2, end + i * 0, mask=i < mine)
    done = first
    for start in range(0, pairs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        same = (tl.load(ids + at, mask=at < pairs, other=-1) == own).to(tl.int32)
        slot = done + tl.cumsum(same, axis=0) - 1
        tl.store(order + slot, at, mask=same > 0)
        tl.store(place + at, slot, mask=same > 0)
        done += tl.sum(same, axis=0)


@triton.jit
def expert_combine(
    results, place, weights, out, WIDTH: tl.constexpr, TOP: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """out[row] = sum of weight * result over the row's choices, in their order."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for choice in range(0, TOP):
        slot = tl.load(place + row * TOP + choice).to(tl.int64)
        weight = tl.load(weights + row * TOP + choice)
        total += weight * tl.load(results + slot * WIDTH + at, mask=at < WIDTH, other=0.0)
    target = out + row * WIDTH + at
    if ADD:
        total = tl.load(target, mask=at < WIDTH, other=0.0) + total
    tl.store(target, total, mask=at < WIDTH)


@triton.jit
def expert_take(
    x, ids, order, columns, out, WIDTH: tl.constexpr, TOP: tl.constexpr, BY_SLOT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """out[slot, k] = x[its row (its slot, with BY_SLOT), the column that its expert has at k]."""
    slot = tl.program_id(0).to(tl.int64)
    pair = tl.load(order + slot)
    expert = tl.load(ids + pair).to(tl.int64)
    row = slot if BY_SLOT else (pair // TOP).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column = tl.load(columns + expert * WIDTH + k, mask=k < WIDTH, other=0)
    tl.store(out + slot * WIDTH + k, tl.load(x + row * WIDTH + column, mask=k < WIDTH, other=0.0), mask=k < WIDTH)
