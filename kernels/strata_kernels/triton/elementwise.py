"""Operations of one element each."""

import triton
import triton.language as tl


@triton.jit
def add(a, b, out, count, BLOCK: tl.constexpr):
    """out = a + b."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.load(a + at, mask=inside) + tl.load(b + at, mask=inside), mask=inside)


@triton.jit
def silu_mul(gate, up, out, count, BLOCK: tl.constexpr):
    """out = silu(gate) * up."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(gate + at, mask=inside, other=0.0)
    tl.store(out + at, value / (1.0 + tl.exp(-value)) * tl.load(up + at, mask=inside, other=0.0), mask=inside)
