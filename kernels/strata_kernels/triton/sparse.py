"""The index of block-sparse attention: keys of blocks, their scores, and the exact choice of the best."""

import triton
import triton.language as tl

from strata_kernels.triton.rope import turned
from strata_kernels.triton.tiles import page_of


@triton.jit
def index_raw(keys, raw, slots, slot_count, WIDTH: tl.constexpr, D: tl.constexpr):
    """raw[slot] = keys [R, WIDTH]; rows with a slot outside are not stored. Grid: rows."""
    row, d = tl.program_id(0), tl.arange(0, D)
    slot = tl.load(slots + row)
    inside = (d < WIDTH) & (slot >= 0) & (slot < slot_count)
    value = tl.load(keys + row.to(tl.int64) * WIDTH + d, mask=inside, other=0.0)
    tl.store(raw + slot.to(tl.int64) * WIDTH + d, value, mask=inside)


@triton.jit
def block_mean(raw, at, inside, GROUP: tl.constexpr, WIDTH: tl.constexpr):
    """Mean of elements `at` of GROUP rows."""
    total = tl.load(raw + at, mask=inside, other=0.0)
    for token in tl.static_range(1, GROUP):
        total += tl.load(raw + at + token * WIDTH, mask=inside, other=0.0)
    return total / GROUP


@triton.jit
def index_blocks(
    raw,
    blocks,
    weight,
    frequencies,
    positions,
    slots,
    slot_count,
    eps,
    scale,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
    ADJACENT: tl.constexpr,
    D: tl.constexpr,
    P: tl.constexpr,
):
    """The key of each block whose last token a row is: mean, norm, rotation by its first position. Grid: rows."""
    row = tl.program_id(0)
    position, slot = tl.load(positions + row), tl.load(slots + row)
    made = ((position + 1) % GROUP == 0) & (slot >= GROUP - 1) & (slot < slot_count)
    if made:
        d, i = tl.arange(0, D), tl.arange(0, P)
        start = (slot + 1 - GROUP).to(tl.int64) * WIDTH
        out = blocks + (slot // GROUP).to(tl.int64) * WIDTH
        mean = block_mean(raw + start, d, d < WIDTH, GROUP, WIDTH)
        inverse = 1.0 / tl.sqrt(tl.sum(mean * mean, axis=0) / WIDTH + eps)
        kept = (d >= 2 * PAIRS) & (d < WIDTH)
        tl.store(out + d, mean * inverse * tl.load(weight + d, mask=kept, other=0.0), mask=kept)
        if ADJACENT:
            one, other = 2 * i, 2 * i + 1
        else:
            one, other = i, i + PAIRS
        inside = i < PAIRS
        first = block_mean(raw + start, one, inside, GROUP, WIDTH) * inverse
        second = block_mean(raw + start, other, inside, GROUP, WIDTH) * inverse
        first *= tl.load(weight + one, mask=inside, other=0.0)
        second *= tl.load(weight + other, mask=inside, other=0.0)
        angle = tl.load(frequencies + i, mask=inside, other=0.0) * (position + 1 - GROUP).to(tl.float32)
        first, second = turned(first, second, angle, scale)
        tl.store(out + one, first, mask=inside)
        tl.store(out + other, second, mask=inside)


@triton.jit
def index_scores(
    q,
    blocks,
    positions,
    sequences,
    pages,
    found,
    sequence_count,
    table_width,
    page_count,
    dense,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    IN_PAGE: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
):
    """found [R, table_width * IN_PAGE]: sum over heads of max(0, q . key) of each whole block. Grid: tiles, rows.

    Only of rows at `dense` and behind. What is no number counts as 0.
    """
    row = tl.program_id(1)
    position = tl.load(positions + row)
    complete = tl.minimum((position + 1) // GROUP, table_width * IN_PAGE)
    first = tl.program_id(0) * N
    if (position >= dense) & (first < complete):
        sequence = tl.minimum(tl.maximum(tl.load(sequences + row), 0), sequence_count - 1)
        block, d = first + tl.arange(0, N), tl.arange(0, D)
        page = page_of(pages + sequence.to(tl.int64) * table_width, block // IN_PAGE, table_width, page_count)
        at = (page.to(tl.int64) * IN_PAGE + block % IN_PAGE)[:, None] * WIDTH + d[None, :]
        key = tl.load(blocks + at, mask=(block < complete)[:, None] & (d < WIDTH)[None, :], other=0.0)
        total = tl.zeros([N], tl.float32)
        for head in range(0, HEADS):
            query = tl.load(q + (row * HEADS + head).to(tl.int64) * WIDTH + d, mask=d < WIDTH, other=0.0)
            product = tl.sum(key * query[None, :], axis=1)
            total += tl.where(product > 0.0, product, 0.0)
        tl.store(found + row.to(tl.int64) * (table_width * IN_PAGE) + block, total, mask=block < complete)


@triton.jit
def index_pick(
    found,
    positions,
    chosen,
    near,
    most,
    dense,
    BLOCKS: tl.constexpr,
    GROUP: tl.constexpr,
    N: tl.constexpr,
    FEW: tl.constexpr,
):
    """chosen [R, BLOCKS]: the blocks of the largest scores found [R, most], ascending; near [R]. Grid: rows.

    Scores are not negative, so their bits are ordered as they are. The BLOCKS-th largest is found 4 bits at a time;
    then all above it count, and of its equals the first ones.
    """
    row = tl.program_id(0)
    position = tl.load(positions + row)
    tl.store(near + row, tl.where(position < dense, position, 0))
    if position >= dense:
        complete = tl.minimum((position + 1) // GROUP, most)
        found += row.to(tl.int64) * most
        digit, few, n = tl.arange(0, 16), tl.arange(0, FEW), tl.arange(0, N)
        least = 0
        for step in range(0, 8):
            border = least + (digit << (28 - 4 * step))  # negative where it is too large
            above = tl.zeros([FEW, 16], tl.int32)
            for at in range(0, complete, FEW):
                bits = tl.load(found + at + few, mask=at + few < complete, other=-1.0).to(tl.int32, bitcast=True)
                above += (bits[:, None] >= border[None, :]).to(tl.int32)
            enough = (tl.sum(above, axis=0) >= BLOCKS) & (border >= least) & (digit > 0)
            least += tl.sum(enough.to(tl.int32), axis=0) << (28 - 4 * step)
        larger = tl.zeros([N], tl.int32)
        for at in range(0, complete, N):
            bits = tl.load(found + at + n, mask=at + n < complete, other=-1.0).to(tl.int32, bitcast=True)
            larger += (bits > least).to(tl.int32)
        equals = BLOCKS - tl.sum(larger, axis=0)
        taken = 0
        for at in range(0, complete, N):
            bits = tl.load(found + at + n, mask=at + n < complete, other=-1.0).to(tl.int32, bitcast=True)
            same = (bits == least).to(tl.int32)
            picked = (bits > least) | ((same > 0) & (tl.cumsum(same, axis=0) <= equals))
            place = taken + tl.cumsum(picked.to(tl.int32), axis=0) - 1
            tl.store(chosen + row * BLOCKS + place, at + n, mask=picked & (place < BLOCKS))
            taken += tl.sum(picked.to(tl.int32), axis=0)
            equals -= tl.sum(same, axis=0)
