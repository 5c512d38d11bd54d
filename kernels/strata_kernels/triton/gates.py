"""Gates of recurrent layers and of shared experts."""

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x), without a power that overflows."""
    power = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, power) / (1.0 + power)


@triton.jit
def sigmoid_mul(x, gate, out, count, BLOCK: tl.constexpr):
    """out = x * sigmoid(gate)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    factor = sigmoid(tl.load(gate + at, mask=inside, other=0.0))
    tl.store(out + at, tl.load(x + at, mask=inside, other=0.0) * factor, mask=inside)


@triton.jit
def add_scaled(x, gate, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out[row] += sigmoid(gate[row]) * x[row]."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < WIDTH
    start = row.to(tl.int64) * WIDTH
    value = tl.load(x + start + at, mask=inside, other=0.0) * sigmoid(tl.load(gate + row))
    tl.store(out + start + at, tl.load(out + start + at, mask=inside, other=0.0) + value, mask=inside)


@triton.jit
def gated_norm(x, weight, gate, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SILU: tl.constexpr):
    """out[row] = x[row] * rsqrt(mean(x[row]^2) + eps) * weight * act(gate[row]); one program a row."""
    row = tl.program_id(0).to(tl.int64) * WIDTH
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row + at, mask=at < WIDTH, other=0.0)
        total += value * value
    scale = 1.0 / tl.sqrt(tl.sum(total, axis=0) / WIDTH + eps)
    for start in range(0, WIDTH, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < WIDTH
        value = tl.load(x + row + at, mask=inside, other=0.0) * scale * tl.load(weight + at, mask=inside, other=0.0)
        opening = tl.load(gate + row + at, mask=inside, other=0.0)
        factor = sigmoid(opening)
        if SILU:
            factor = opening * factor
        tl.store(out + row + at, value * factor, mask=inside)
