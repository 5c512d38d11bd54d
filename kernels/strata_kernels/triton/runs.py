"""Which rows of a step belong to one sequence: they stand together, in order of their positions."""

import triton
import triton.language as tl


@triton.jit
def run_of(sequences, own, count, SCAN: tl.constexpr):
    """First row of sequence `own` and the row after its last, among `count` rows; (count, count) where it has none."""
    first = count
    length = count * 0
    for start in range(0, count, SCAN):
        at = start + tl.arange(0, SCAN)
        inside = at < count
        same = inside & (tl.load(sequences + at, mask=inside, other=0) == own)
        first = tl.minimum(first, tl.min(tl.where(same, at, count), axis=0))
        length += tl.sum(same.to(tl.int32), axis=0)
    return first, first + length


@triton.jit
def state_slot(states, own, sequence_count, slots):
    """Slot of sequence `own`; -1 where the sequence or its slot is not there."""
    known = (own >= 0) & (own < sequence_count)
    slot = tl.load(states + own, mask=known, other=-1)
    return tl.where((slot >= 0) & (slot < slots), slot, -1)


@triton.jit
def begins_run(sequences, row):
    """Whether the row is the first one of its sequence in this step."""
    before = tl.load(sequences + row - 1, mask=row > 0, other=0)
    return (row == 0) | (before != tl.load(sequences + row))
