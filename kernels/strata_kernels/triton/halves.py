"""Activations for products of many rows: f16 of each row times a power of two, so that nothing overflows."""

import triton
import triton.language as tl


@triton.jit
def halve_rows(x, out, back, K: tl.constexpr, PADDED: tl.constexpr, CELLS: tl.constexpr, BLOCK: tl.constexpr):
    """out[r, PADDED] f16 = x[r, K] f32 * s, back[r] = 1 / s, with s a power of two and the largest below 2^15.

    CELLS: columns in the order of code after code of each 256, as cells have them: 32 g + 4 i + j at 32 i + 4 g + j.
    Columns K and later are zero. Smaller than 2^-29 of the largest: digits are lost, as f16 has it.
    """
    row = tl.program_id(0).to(tl.int64)
    most = tl.zeros([BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.abs(tl.load(x + row * K + k, mask=k < K, other=0.0)))
    exponent = tl.max(most, axis=0).to(tl.int32, bitcast=True) >> 23
    raised = tl.minimum(268 - exponent, 240)
    scale = (raised << 23).to(tl.float32, bitcast=True)
    for start in range(0, PADDED, BLOCK):
        at = start + tl.arange(0, BLOCK)
        k = at
        if CELLS:
            k = (at // 256) * 256 + ((at // 4) % 8) * 32 + ((at // 32) % 8) * 4 + at % 4
        value = tl.load(x + row * K + k, mask=(k < K) & (at < PADDED), other=0.0) * scale
        tl.store(out + row * PADDED + at, value.to(tl.float16), mask=at < PADDED)
    tl.store(back + row, ((254 - raised) << 23).to(tl.float32, bitcast=True))


@triton.jit
def take_columns(x, order, out, K: tl.constexpr, BLOCK: tl.constexpr):
    """out[r, k] = x[r, order[k]]."""
    row = tl.program_id(0).to(tl.int64) * K
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column = tl.load(order + k, mask=k < K, other=0)
    tl.store(out + row + k, tl.load(x + row + column, mask=k < K, other=0.0), mask=k < K)
