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


@triton.jit
def gelu(x, out, count, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """out = x * Phi(x), by the error function or by its tanh approximation."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(x + at, mask=inside, other=0.0)
    if TANH:
        inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
        # tanh(a) = 1 - 2 / (exp(2 a) + 1), which neither end overflows
        share = 1.0 - 1.0 / (tl.exp(2.0 * inner) + 1.0)
    else:
        share = 0.5 + 0.5 * tl.erf(value * 0.7071067811865476)
    tl.store(out + at, value * share, mask=inside)
