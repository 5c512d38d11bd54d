"""Short causal convolutions over the rows of a sequence, one program a block of channels.

Taps are summed from the oldest row to the newest, in one order whatever the number of rows.
"""

import triton
import triton.language as tl

from strata_kernels.triton.gates import sigmoid
from strata_kernels.triton.runs import begins_run, run_of, state_slot


@triton.jit
def tap_sum(
    x, weight, past, slot, position, row, first, at, CHANNELS: tl.constexpr, KERNEL: tl.constexpr,
    DILATION: tl.constexpr, RING: tl.constexpr, SILU: tl.constexpr
):  # fmt: skip
    """The convolution at one row for the channels `at`: from the step's own rows, or from the ring before them."""
    inside = at < CHANNELS
    total = tl.zeros_like(at).to(tl.float32)
    for j in tl.static_range(KERNEL):
        back = (KERNEL - 1 - j) * DILATION
        fresh = row - back >= first
        old = (row - back < first) & (position >= back)
        value = tl.load(x + (row - back).to(tl.int64) * CHANNELS + at, mask=inside & fresh, other=0.0)
        if back > 0:
            place = slot.to(tl.int64) * RING + (position - back + RING) % RING
            value += tl.load(past + place * CHANNELS + at, mask=inside & old, other=0.0)
        total += tl.load(weight + at * KERNEL + j, mask=inside, other=0.0) * value
    if SILU:
        total = total * sigmoid(total)
    return total


@triton.jit
def keep_input(x, past, slot, position, row, at, CHANNELS: tl.constexpr, RING: tl.constexpr):
    """Put a row into its place of the ring."""
    place = slot.to(tl.int64) * RING + position % RING
    value = tl.load(x + row.to(tl.int64) * CHANNELS + at, mask=at < CHANNELS, other=0.0)
    tl.store(past + place * CHANNELS + at, value, mask=at < CHANNELS)


@triton.jit
def short_conv(
    x, weight, past, positions, sequences, states, out, count, sequence_count, slots, CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr, DILATION: tl.constexpr, RING: tl.constexpr, SILU: tl.constexpr, SCAN: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    """Few rows: the program of a sequence's first row does all of them and moves the ring on."""
    row = tl.program_id(0)
    if not begins_run(sequences, row):
        return
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(sequences + row)
    slot = state_slot(states, own, sequence_count, slots)
    first, end = run_of(sequences, own, count, SCAN)
    for i in range(0, end - row):
        r = row + i
        position = tl.load(positions + r)
        if slot < 0:
            value = tl.full([BLOCK], float("nan"), tl.float32)
        else:
            value = tap_sum(x, weight, past, slot, position, r, row, at, CHANNELS, KERNEL, DILATION, RING, SILU)
        tl.store(out + r.to(tl.int64) * CHANNELS + at, value, mask=at < CHANNELS)
    if RING > 0:
        tl.debug_barrier()  # the ring is read before it is written
        if slot >= 0:
            start = tl.maximum(row, end - RING)
            for i in range(0, end - start):
                r = start + i
                keep_input(x, past, slot, tl.load(positions + r), r, at, CHANNELS, RING)


@triton.jit
def short_conv_rows(
    x, weight, past, positions, sequences, states, out, count, sequence_count, slots, CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr, DILATION: tl.constexpr, RING: tl.constexpr, SILU: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Many rows, each by itself; the ring stays as it is until `short_conv_keep`."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(sequences + row)
    slot = state_slot(states, own, sequence_count, slots)
    first = row
    for i in tl.static_range(1, (KERNEL - 1) * DILATION + 1):
        same = tl.load(sequences + row - i, mask=row >= i, other=0) == own
        first = tl.where((row >= i) & same, row - i, first)
    if slot < 0:
        value = tl.full([BLOCK], float("nan"), tl.float32)
    else:
        value = tap_sum(
            x, weight, past, slot, tl.load(positions + row), row, first, at, CHANNELS, KERNEL, DILATION, RING, SILU
        )
    tl.store(out + row.to(tl.int64) * CHANNELS + at, value, mask=at < CHANNELS)


@triton.jit
def short_conv_keep(
    x, past, positions, sequences, states, count, sequence_count, slots, CHANNELS: tl.constexpr, RING: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    """The last rows of each sequence go into its ring: as many as it holds."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(sequences + row)
    slot = state_slot(states, own, sequence_count, slots)
    later = row + RING
    overwritten = (later < count) & (tl.load(sequences + later, mask=later < count, other=0) == own)
    if (slot >= 0) & (overwritten == 0):
        keep_input(x, past, slot, tl.load(positions + row), row, at, CHANNELS, RING)


@triton.jit
def block_conv(
    x, change, base, sequences, out, side, WIDTH: tl.constexpr, TAPS: tl.constexpr, GROUPS: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    """out[r, c] = sum over t of (base[side, t, c] + change[r, side, t, c's group]) * x[r - t, c], in order of t."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < WIDTH
    own = tl.load(sequences + row)
    changes = change + row.to(tl.int64) * (2 * TAPS * GROUPS) + side * (TAPS * GROUPS) + at // (WIDTH // GROUPS)
    total = tl.zeros([BLOCK], tl.float32)
    together = row >= 0
    for t in tl.static_range(TAPS):
        before = tl.load(sequences + row - t, mask=row >= t, other=0)
        together = together & (row >= t) & (before == own)
        seen = inside & together
        factor = tl.load(base + (side * TAPS + t) * WIDTH + at, mask=seen, other=0.0)
        factor += tl.load(changes + t * GROUPS, mask=seen, other=0.0)
        total += factor * tl.load(x + (row - t).to(tl.int64) * WIDTH + at, mask=seen, other=0.0)
    tl.store(out + row.to(tl.int64) * WIDTH + at, total, mask=inside)
