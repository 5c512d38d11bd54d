"""Rows picked by number."""

import triton
import triton.language as tl


@triton.jit
def gather(x, index, out, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out[n] = x[index[n]], rows of WIDTH elements of 32 bits; a program takes BLOCK elements of one row.

    x has `rows` rows; an index outside of them gives zeros.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(index + row).to(tl.int64)
    inside = (at < WIDTH) & (source >= 0) & (source < rows)
    tl.store(out + row * WIDTH + at, tl.load(x + source * WIDTH + at, mask=inside, other=0), mask=at < WIDTH)


@triton.jit
def put_rows(x, index, out, rows, COLUMN: tl.constexpr, STRIDE: tl.constexpr, WIDTH: tl.constexpr, ADD: tl.constexpr,
             BLOCK: tl.constexpr):  # fmt: skip
    """out[r] = x[index[r], COLUMN:] (or added to it) where x has such a row; rows of STRIDE in x, of WIDTH in out."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(index + row).to(tl.int64)
    inside = (at < WIDTH) & (source >= 0) & (source < rows)
    value = tl.load(x + source * STRIDE + COLUMN + at, mask=inside, other=0.0)
    if ADD:
        value += tl.load(out + row * WIDTH + at, mask=inside, other=0.0)
    tl.store(out + row * WIDTH + at, value, mask=inside)
