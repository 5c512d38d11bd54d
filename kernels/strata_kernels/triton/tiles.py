"""What the attention kernels share: tiles of a paged cache in any of its types, and products of f32 with them.

A product runs in matrix units with f16 inputs and f32 sums. Codes and f16 values are exact in f16; all else is first
divided by a power of two. A PRECISE product takes its f32 side in two f16 parts (22 bits), others in one.
"""

import triton
import triton.language as tl


@triton.jit
def power_of_two(most):
    """The power of two at or below each f32 of `most` (>= 0), and its inverse, both finite."""
    exponent = tl.minimum(tl.maximum(most.to(tl.int32, bitcast=True) >> 23, 1), 253)
    return (exponent << 23).to(tl.float32, bitcast=True), ((254 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def halves(x):
    """x f32 of moderate size as f16 `high` + `low` / 2048."""
    high = x.to(tl.float16)
    return high, ((x - high.to(tl.float32)) * 2048.0).to(tl.float16)


@triton.jit
def stacked(x, low, PRECISE: tl.constexpr):
    """x [M, .] f32 as f16; PRECISE: its two halves, one for the rows that are not `low` [M], one for those that are."""
    if PRECISE:
        upper, lower = halves(x)
        return tl.where(low[:, None], lower, upper)
    else:
        return x.to(tl.float16)


@triton.jit
def joined(x, M: tl.constexpr, N: tl.constexpr, SPREAD: tl.constexpr):
    """Sums [M, N] of stacked rows (M / 2 rows of high parts, then as many of low ones) as [M / 2, N].

    SPREAD: each twice again, [M, N].
    """
    both = tl.reshape(x, [2, M // 2, N])
    weight = tl.where(tl.arange(0, 2) == 0, 1.0, 1.0 / 2048.0)
    whole = tl.sum(both * weight[:, None, None], axis=0)
    if SPREAD:
        return tl.reshape(tl.broadcast_to(whole[None, :, :], [2, M // 2, N]), [M, N])
    else:
        return whole


@triton.jit
def widened(stored, KIND: tl.constexpr):
    """Elements of a cache as f32; bf16 comes as i16."""
    if KIND == "bf16":
        return (stored.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return stored.to(tl.float32)


@triton.jit
def scores(
    q,
    rows,
    inverse,
    low,
    keys,
    scales,
    tokens,
    inside,
    width,
    KIND: tl.constexpr,
    W: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    P: tl.constexpr,
    C: tl.constexpr,
):
    """q * inverse (`rows` [M], -1: none) @ keys of the `tokens` [N], f32 [M, N]. W: width of a row; P: precise.

    C elements at a time, in a loop that is not unrolled (`width` = W): whole queries and keys would not fit registers.
    """
    found = tl.zeros([M, N], tl.float32)
    for start in range(0, width, C):
        d = start + tl.arange(0, C)
        mine = (rows >= 0)[:, None]
        there = inside[None, :]
        if D > W:
            mine = mine & (d < W)[None, :]
            there = there & (d < W)[:, None]
        own = tl.load(q + rows[:, None] * W + d[None, :], mask=mine, other=0.0)
        query = stacked(own * inverse[:, None], low, P)
        stored = tl.load(keys + tokens[None, :] * W + d[:, None], mask=there, other=0)
        if KIND == "f16" or KIND == "i8":
            found = tl.dot(query, stored.to(tl.float16), found)
        else:
            wide = widened(stored, KIND)
            factor, shrink = power_of_two(tl.max(tl.abs(wide), axis=0))
            upper, lower = halves(wide * shrink[None, :])
            part = tl.dot(query, upper)
            if P and KIND == "f32":
                part += tl.dot(query, lower) * (1.0 / 2048.0)
            found += part * factor[None, :]
    if P:
        found = joined(found, M, N, True)
    if KIND == "i8":
        found *= tl.load(scales + tokens, mask=inside, other=0.0)[None, :]
    return found


@triton.jit
def nibbles(values, tokens, token_inside, d, ROW: tl.constexpr, W: tl.constexpr):
    """Values in blocks of 32 with 4 bits an element, f32 [N, D]. ROW: bytes of a row of W elements."""
    mask = token_inside[:, None] & (d < W)[None, :]
    block = tokens[:, None] * ROW + (d // 32 * 20)[None, :]
    numbers = (values + block).to(tl.pointer_type(tl.float16), bitcast=True)
    scale = tl.load(numbers, mask=mask, other=0.0).to(tl.float32)
    least = tl.load(numbers + 1, mask=mask, other=0.0).to(tl.float32)
    byte = tl.load(values + block + (4 + d % 16)[None, :], mask=mask, other=0).to(tl.int32)
    code = (byte >> (d % 32 // 16 * 4)[None, :]) & 15
    return code.to(tl.float32) * scale + least


@triton.jit
def weighted(
    p,
    low,
    values,
    scales,
    tokens,
    inside,
    acc,
    KIND: tl.constexpr,
    W: tl.constexpr,
    D: tl.constexpr,
    P: tl.constexpr,
):
    """acc [M, D] + p [M, N] (in 0..1) @ values of the `tokens`; stacked when P."""
    d = tl.arange(0, D)
    mask = inside[:, None]
    if D > W:
        mask = mask & (d < W)[None, :]
    if KIND == "u8":
        wide = nibbles(values, tokens, inside, d, (W + 31) // 32 * 20, W)
    else:
        stored = tl.load(values + tokens[:, None] * W + d[None, :], mask=mask, other=0)
    if KIND == "f16":
        return tl.dot(stacked(p, low, P), stored, acc)
    elif KIND == "i8":
        own = tl.load(scales + tokens, mask=inside, other=0.0)
        factor, shrink = power_of_two(tl.max(own, axis=0))
        return acc + tl.dot(stacked(p * (own * shrink)[None, :], low, P), stored.to(tl.float16)) * factor
    else:
        if KIND != "u8":
            wide = widened(stored, KIND)
        factor, shrink = power_of_two(tl.max(tl.max(tl.abs(wide), axis=1), axis=0))
        weight = stacked(p, low, P)
        upper, lower = halves(wide * shrink)
        part = tl.dot(weight, upper)
        if P and KIND != "bf16":
            part += tl.dot(weight, lower) * (1.0 / 2048.0)
        return acc + part * factor


@triton.jit
def page_of(table, number, table_width, page_count):
    """Pages `number` of a sequence; numbers outside the cache become page 0."""
    page = tl.load(table + tl.minimum(number, table_width - 1))
    return tl.where((page >= 0) & (page < page_count), page, 0)


@triton.jit
def sizes(q, rows, W: tl.constexpr, D: tl.constexpr):
    """A power of two for each row of queries, and its inverse (`scores`)."""
    d = tl.arange(0, D)
    value = tl.load(q + rows[:, None] * W + d[None, :], mask=(rows >= 0)[:, None] & (d < W)[None, :], other=0.0)
    return power_of_two(tl.max(tl.abs(value), axis=1))


@triton.jit
def located(
    table,
    first,
    token,
    table_width,
    page_count,
    kv_head,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    N: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Rows of the cache where the tokens [N] of a sequence and kv head are: a first one, and [N] counted from there.

    WHOLE: they are consecutive from `first`, a multiple of N; where pages are such multiples, one number is looked up.
    """
    if WHOLE and PAGE % N == 0:
        page = page_of(table, first // PAGE, table_width, page_count)
        return (page.to(tl.int64) * KV_HEADS + kv_head) * PAGE + first % PAGE, tl.arange(0, N)
    else:
        page = page_of(table, token // PAGE, table_width, page_count)
        return kv_head.to(tl.int64) * PAGE, page.to(tl.int64) * (KV_HEADS * PAGE) + token % PAGE


@triton.jit
def row_bytes(KIND: tl.constexpr, W: tl.constexpr):
    """Stored elements of a row of W values."""
    return (W + 31) // 32 * 20 if KIND == "u8" else W


@triton.jit
def softmax_step(s, top, total):
    """Weights of new scores s [M, N], what earlier sums are multiplied by, the new largest score and sum of weights."""
    most = tl.maximum(top, tl.max(s, axis=1))
    safe = tl.where(most == float("-inf"), 0.0, most)
    p = tl.exp(s - safe[:, None])
    kept = tl.exp(top - safe)
    return p, kept, most, total * kept + tl.sum(p, axis=1)
