"""Several residual streams, and hashed n-grams."""

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def stream_norm(x, weight, out, eps, STREAMS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out = x * rsqrt(mean(x^2) + eps) * weight [S, W] of each stream of x [R, S, W]. Grid: rows * streams."""
    row = tl.program_id(0).to(tl.int64) * WIDTH
    own = tl.program_id(0) % STREAMS * WIDTH
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row + at, mask=at < WIDTH, other=0.0)
        total += value * value
    scale = 1.0 / tl.sqrt(tl.sum(total, axis=0) / WIDTH + eps)
    for start in range(0, WIDTH, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row + at, mask=at < WIDTH, other=0.0)
        factor = tl.load(weight + own + at, mask=at < WIDTH, other=0.0)
        tl.store(out + row + at, value * scale * factor, mask=at < WIDTH)


@triton.jit
def silu_scaled(x, out, count, scale, BLOCK: tl.constexpr):
    """out = silu(scale x)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count, other=0.0) * scale
    tl.store(out + at, value * sigmoid(value), mask=at < count)


@triton.jit
def stream_mix(x, gate, out, STREAMS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out [R, W] = mean over the streams of sigmoid(gate) * x. Grid: rows, parts of a row."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    for stream in tl.static_range(STREAMS):
        place = (row * STREAMS + stream) * WIDTH + at
        value = tl.load(x + place, mask=at < WIDTH, other=0.0)
        total += sigmoid(tl.load(gate + place, mask=at < WIDTH, other=0.0)) * value
    tl.store(out + row * WIDTH + at, total / STREAMS, mask=at < WIDTH)


@triton.jit
def stream_add(y, gate, out, STREAMS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out [R, S, W] += 2 sigmoid(gate [R, S] / S) * y [R, W]. Grid: rows * streams, parts of a row."""
    stream, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    factor = 2.0 * sigmoid(tl.load(gate + stream) / STREAMS)
    value = tl.load(y + stream // STREAMS * WIDTH + at, mask=at < WIDTH, other=0.0)
    place = out + stream * WIDTH + at
    tl.store(place, tl.load(place, mask=at < WIDTH, other=0.0) + factor * value, mask=at < WIDTH)


@triton.jit
def stream_gate(key, query, value, out, shrink, STREAMS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out [R, S, W] = sigmoid(sign(a) sqrt(|a|)) * value [R, W], a = key . query * shrink. Grid: rows * streams."""
    stream = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        at = start + tl.arange(0, BLOCK)
        one = tl.load(key + stream * WIDTH + at, mask=at < WIDTH, other=0.0)
        total += one * tl.load(query + stream * WIDTH + at, mask=at < WIDTH, other=0.0)
    agreement = tl.sum(total, axis=0) * shrink
    size = tl.sqrt(tl.maximum(tl.abs(agreement), 1e-6))
    signed = tl.where(agreement > 0.0, size, tl.where(agreement < 0.0, -size, agreement))
    gate = sigmoid(signed)
    for start in range(0, WIDTH, BLOCK):
        at = start + tl.arange(0, BLOCK)
        own = tl.load(value + stream // STREAMS * WIDTH + at, mask=at < WIDTH, other=0.0)
        tl.store(out + stream * WIDTH + at, gate * own, mask=at < WIDTH)


@triton.jit
def ngram_rows(
    ids,
    past,
    positions,
    sequences,
    states,
    multipliers,
    sizes,
    offsets,
    out,
    slot_count,
    eos,
    RING: tl.constexpr,
    HISTORY: tl.constexpr,
    HEADS: tl.constexpr,
    J: tl.constexpr,
):
    """out [R, HEADS] = rows of a table that a token and HISTORY tokens before it read (ops_streams.Ngrams). Grid: rows.

    Tokens before the step's come from past [slots, RING]. A row whose slot is outside `past` reads nothing.
    """
    row, j = tl.program_id(0), tl.arange(0, J)
    sequence, position = tl.load(sequences + row), tl.load(positions + row)
    slot = tl.load(states + sequence)
    known = (slot >= 0) & (slot < slot_count)
    key = tl.load(ids + row).to(tl.int64) * tl.load(multipliers)
    value = tl.zeros([J], tl.int64)
    cut = row < 0
    for back in tl.static_range(1, HISTORY + 1):
        here = row >= back
        here = here & (tl.load(sequences + row - back, mask=here, other=-1) == sequence)
        before = (position >= back) & known
        stored = past + slot.to(tl.int64) * RING + (position - back) % RING
        token = tl.where(here, tl.load(ids + row - back, mask=here, other=0), tl.load(stored, mask=before, other=0))
        token = tl.where(position >= back, token, eos)
        cut = cut | (token == eos)
        key = key ^ (tl.where(cut, eos, token).to(tl.int64) * tl.load(multipliers + back))
        value = tl.where(j // (HEADS // HISTORY) == back - 1, key, value)
    size = tl.load(sizes + j, mask=j < HEADS, other=1)
    found = value % size + tl.load(offsets + j, mask=j < HEADS, other=0)
    tl.store(out + row * HEADS + j, found.to(tl.int32), mask=(j < HEADS) & known)


@triton.jit
def ngram_keep(ids, past, positions, sequences, states, rows, slot_count, RING: tl.constexpr):
    """past takes up the tokens of the step: of each place of the ring the last one. Grid: rows."""
    row = tl.program_id(0)
    sequence, position = tl.load(sequences + row), tl.load(positions + row)
    slot = tl.load(states + sequence)
    later = row + RING < rows
    later = later & (tl.load(sequences + row + RING, mask=later, other=-1) == sequence)
    writes = (slot >= 0) & (slot < slot_count) & (later == 0) & (position >= 0)
    tl.store(past + slot.to(tl.int64) * RING + position % RING, tl.load(ids + row), mask=writes)
