"""Softmax attention over pages: a split kernel with its combination for few rows, a tiled one for prompts.

Few rows: a program takes one row, all heads of one kv head and one stretch of the row's tokens. The stretches follow
from the tokens that the row sees and from nothing else, so neither other rows nor the size of the grid matter.
"""

import triton
import triton.language as tl

from strata_kernels.triton.tiles import joined, located, row_bytes, scores, sizes, softmax_step, weighted

STRETCH = tl.constexpr(64)  # tokens at least
UNIT = tl.constexpr(32)  # a stretch is a multiple of this, and begins at one
SPLITS = tl.constexpr(128)  # stretches at most; gpu/attention.py knows the numbers too


@triton.jit
def seen(last, first, row, capacity, FIRST: tl.constexpr, SPARSE: tl.constexpr, GROUP: tl.constexpr):
    """Tokens `start`..`end`-1 that a row sees, and where its first stretch begins.

    SPARSE: number of chosen blocks of GROUP tokens, which come first, then the tokens after the last whole block; a row
    that sees no more than SPARSE whole blocks has none here.
    """
    end = tl.minimum(tl.load(last + row) + 1, capacity)
    start = 0
    if FIRST:
        start = tl.maximum(tl.load(first + row), 0)
    if SPARSE:
        end = tl.where(end > SPARSE * GROUP + GROUP - 1, SPARSE * GROUP + end % GROUP, 0)
    return start, end, start // UNIT * UNIT


@triton.jit
def stretch(begin, end):
    """Tokens of one stretch."""
    share = (end - begin + SPLITS - 1) // SPLITS
    return tl.maximum((share + UNIT - 1) // UNIT * UNIT, STRETCH)


@triton.jit
def attention_split(
    q,
    keys,
    values,
    key_scales,
    value_scales,
    last,
    first,
    sequences,
    pages,
    chosen,
    part,
    tops,
    sums,
    sequence_count,
    table_width,
    page_count,
    splits,
    scale,
    width,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    FIRST: tl.constexpr,
    SPARSE: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    C: tl.constexpr,
):
    """part [R, H, splits, D] = sums of a stretch, weighted by exp(score - tops), with their weights' `sums`.

    Grid: kv heads, splits, rows. M: twice the heads of a kv head, rounded up; N: tokens of a tile.
    """
    kv_head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, end, begin = seen(last, first, row, table_width * PAGE, FIRST, SPARSE, GROUP)
    size = stretch(begin, end)
    low = begin + split * size
    high = tl.minimum(low + size, end)
    if low < high:
        whole = tl.load(last + row) + 1
        sequence = tl.minimum(tl.maximum(tl.load(sequences + row), 0), sequence_count - 1)
        table = pages + sequence.to(tl.int64) * table_width
        EACH: tl.constexpr = HEADS // KV_HEADS
        m, n, d = tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
        each = m % (M // 2)  # twice: see tiles.stacked
        rows = tl.where(each < EACH, row * HEADS + kv_head * EACH + each, -1)
        factor, inverse = sizes(q, rows, WIDTH, D)
        factor *= scale
        top = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        acc = tl.zeros([M, D], tl.float32)
        for at in range(low, high, N):
            token = at + n
            inside = (token >= start) & (token < high)
            if SPARSE:
                block = tl.load(chosen + row * SPARSE + tl.minimum(token // GROUP, SPARSE - 1))
                block = tl.minimum(tl.maximum(block, 0), whole // GROUP - 1)  # never beyond what the row sees
                tail = whole // GROUP * GROUP + token - SPARSE * GROUP
                token = tl.where(token < SPARSE * GROUP, block * GROUP + token % GROUP, tail)
            base, place = located(table, at, token, table_width, page_count, kv_head, KV_HEADS, PAGE, N, SPARSE == 0)
            k, ks = keys + base * WIDTH, key_scales + base
            s = scores(q, rows, inverse, m >= M // 2, k, ks, place, inside, width, KEYS, WIDTH, M, N, D, True, C)
            s = s * factor[:, None]
            s = tl.where(inside[None, :], s, float("-inf"))
            p, kept, top, total = softmax_step(s, top, total)
            v = values + base * row_bytes(VALUES, WIDTH)
            acc = acc * kept[:, None]
            acc = weighted(p, m >= M // 2, v, value_scales + base, place, inside, acc, VALUES, WIDTH, D, True)
        slot = rows.to(tl.int64) * splits + split
        tl.store(tops + slot, top, mask=m < EACH)
        tl.store(sums + slot, total, mask=m < EACH)
        m = tl.arange(0, M // 2)
        slot = (row * HEADS + kv_head * EACH + m).to(tl.int64) * splits + split
        valid = (m < EACH)[:, None] & (d < WIDTH)[None, :]
        tl.store(part + slot[:, None] * WIDTH + d[None, :], joined(acc, M, D, False), mask=valid)


@triton.jit
def attention_join(
    last,
    first,
    part,
    tops,
    sums,
    out,
    capacity,
    splits,
    FIRST: tl.constexpr,
    SPARSE: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
):
    """out [R, H, D] = the stretches of a row together; a row that sees nothing becomes zeros. Grid: rows, heads."""
    row, head = tl.program_id(0), tl.program_id(1)
    start, end, begin = seen(last, first, row, capacity, FIRST, SPARSE, GROUP)
    size = stretch(begin, end)
    live = (end - begin + size - 1) // size
    at = (row * HEADS + head).to(tl.int64)
    split = tl.arange(0, SPLITS)
    inside = split < live
    top = tl.load(tops + at * splits + split, mask=inside, other=float("-inf"))
    most = tl.max(top, axis=0)
    weight = tl.exp(top - tl.where(most == float("-inf"), 0.0, most))
    total = tl.sum(tl.load(sums + at * splits + split, mask=inside, other=0.0) * weight, axis=0)
    inverse = 1.0 / tl.where(live > 0, total, 1.0)
    for column in range(0, WIDTH, D):
        d = column + tl.arange(0, D)
        places = part + (at * splits + split)[:, None] * WIDTH + d[None, :]
        own = tl.load(places, mask=inside[:, None] & (d < WIDTH)[None, :], other=0.0)
        value = tl.sum(own * weight[:, None], axis=0) * inverse
        writes = d < WIDTH
        if SPARSE:  # rows that chose nothing keep what they have
            writes = writes & (live > 0)
        tl.store(out + at * WIDTH + d, value, mask=writes)


@triton.jit
def attention_prompt(
    q,
    keys,
    values,
    key_scales,
    value_scales,
    last,
    first,
    sequences,
    pages,
    out,
    rows,
    table_width,
    page_count,
    scale,
    width,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    FIRST: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    C: tl.constexpr,
):
    """out [R, H, D]: M consecutive rows, those of one sequence, one head. Grid: tiles of rows, heads, sequences."""
    row = tl.program_id(0) * M + tl.arange(0, M)
    head, sequence = tl.program_id(1), tl.program_id(2)
    mine = tl.load(sequences + row, mask=row < rows, other=-1) == sequence
    ends = tl.minimum(tl.load(last + row, mask=mine, other=-1) + 1, table_width * PAGE)
    starts = tl.where(mine, 0, table_width * PAGE)
    if FIRST:
        starts = tl.maximum(tl.load(first + row, mask=mine, other=table_width * PAGE), 0)
    if tl.max(mine.to(tl.int32), axis=0) > 0:
        n, d = tl.arange(0, N), tl.arange(0, D)
        own = tl.where(mine, row * HEADS + head, -1)
        factor, inverse = sizes(q, own, WIDTH, D)
        factor *= scale
        table = pages + sequence.to(tl.int64) * table_width
        kv_head = head // (HEADS // KV_HEADS)
        top = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        acc = tl.zeros([M, D], tl.float32)
        end = tl.max(ends, axis=0)
        for token in range(tl.min(starts, axis=0) // N * N, end, N):
            inside = token + n < end
            base, place = located(table, token, token + n, table_width, page_count, kv_head, KV_HEADS, PAGE, N, True)
            k, ks = keys + base * WIDTH, key_scales + base
            s = (
                scores(q, own, inverse, mine, k, ks, place, inside, width, KEYS, WIDTH, M, N, D, False, C)
                * factor[:, None]
            )
            visible = ((token + n)[None, :] >= starts[:, None]) & ((token + n)[None, :] < ends[:, None])
            s = tl.where(visible, s, float("-inf"))
            p, kept, top, total = softmax_step(s, top, total)
            v = values + base * row_bytes(VALUES, WIDTH)
            acc = acc * kept[:, None]
            acc = weighted(p, mine, v, value_scales + base, place, inside, acc, VALUES, WIDTH, D, False)
        inverse = 1.0 / tl.where(ends > starts, total, 1.0)
        at = own.to(tl.int64)[:, None] * WIDTH + d[None, :]
        tl.store(out + at, acc * inverse[:, None], mask=mine[:, None] & (d < WIDTH)[None, :])
