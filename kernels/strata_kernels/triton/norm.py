"""Norms of rows: one program a row."""

import triton
import triton.language as tl


@triton.jit
def rms_norm(x, weight, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out[row] = x[row] * rsqrt(mean(x[row]^2) + eps) * weight."""
    row = tl.program_id(0).to(tl.int64) * WIDTH
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row + at, mask=at < WIDTH, other=0.0)
        total += value * value
    scale = 1.0 / tl.sqrt(tl.sum(total, axis=0) / WIDTH + eps)
    for start in range(0, WIDTH, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row + at, mask=at < WIDTH, other=0.0)
        factor = tl.load(weight + at, mask=at < WIDTH, other=0.0)
        tl.store(out + row + at, value * scale * factor, mask=at < WIDTH)


@triton.jit
def layer_norm(x, weight, bias, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out[row] = (x[row] - mean) * rsqrt(variance + eps) * weight + bias."""
    row = tl.program_id(0).to(tl.int64) * WIDTH
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row + at, mask=at < WIDTH, other=0.0)
    mean = tl.sum(total, axis=0) / WIDTH
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        at = start + tl.arange(0, BLOCK)
        apart = tl.load(x + row + at, mask=at < WIDTH, other=0.0) - mean
        squares += tl.where(at < WIDTH, apart * apart, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / WIDTH + eps)
    for start in range(0, WIDTH, BLOCK):
        at = start + tl.arange(0, BLOCK)
        apart = tl.load(x + row + at, mask=at < WIDTH, other=0.0) - mean
        factor = tl.load(weight + at, mask=at < WIDTH, other=0.0)
        shift = tl.load(bias + at, mask=at < WIDTH, other=0.0)
        tl.store(out + row + at, apart * scale * factor + shift, mask=at < WIDTH)
