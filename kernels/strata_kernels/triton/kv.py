"""Writing keys and values into the pages of a cache, in its types."""

import triton
import triton.language as tl

LEAST = tl.constexpr(1e-30)  # rows whose largest element is below have scale and codes of 0


@triton.jit
def nearest_even(x):
    """x rounded to a whole number, for |x| < 2^22."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def as_bf16(x):
    """The bits of x as bf16, rounded to nearest even."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(x == x, rounded, 0x7FC0).to(tl.int16)


@triton.jit
def store_bytes(x, at, inside, stored, scales, token, writes):
    """One row as codes of one byte and their scale."""
    most = tl.max(tl.abs(x), axis=0)
    wrong = tl.sum(x * 0.0, axis=0)  # NaN where the row is not finite
    inverse = tl.where(most >= LEAST, tl.div_rn(127.0, tl.maximum(most, LEAST)), 0.0)
    code = nearest_even(x * inverse)
    code = tl.minimum(tl.maximum(tl.where(code == code, code, 0.0), -127.0), 127.0)
    tl.store(stored + at, code.to(tl.int8), mask=inside)
    tl.store(scales + token, tl.where(most >= LEAST, most, 0.0) * (1.0 / 127.0) + wrong, mask=writes)


@triton.jit
def store_nibbles(x, row, stored, token, writes, WIDTH: tl.constexpr, BLOCKS: tl.constexpr):
    """One row in blocks of 32, 4 bits an element; the last block repeats the row's last element."""
    block, i = tl.arange(0, BLOCKS), tl.arange(0, 16)
    low_at = block[:, None] * 32 + i[None, :]
    low = tl.load(x + row + tl.minimum(low_at, WIDTH - 1), mask=writes, other=0.0)
    high = tl.load(x + row + tl.minimum(low_at + 16, WIDTH - 1), mask=writes, other=0.0)
    least = tl.minimum(tl.min(low, axis=1), tl.min(high, axis=1)) + 0.0
    most = tl.maximum(tl.max(low, axis=1), tl.max(high, axis=1))
    wrong = tl.sum(low * 0.0, axis=1) + tl.sum(high * 0.0, axis=1)
    scale = tl.where(wrong == 0.0, (most - least) * (1.0 / 15.0), float("nan")).to(tl.float16)
    start = tl.where(wrong == 0.0, least, 0.0).to(tl.float16)
    read, begin = scale.to(tl.float32), start.to(tl.float32)
    inverse = tl.where(read > 0.0, tl.div_rn(1.0, tl.where(read > 0.0, read, 1.0)), 0.0)
    low = nearest_even((low - begin[:, None]) * inverse[:, None])
    high = nearest_even((high - begin[:, None]) * inverse[:, None])
    low = tl.minimum(tl.maximum(tl.where(low == low, low, 0.0), 0.0), 15.0).to(tl.int32)
    high = tl.minimum(tl.maximum(tl.where(high == high, high, 0.0), 0.0), 15.0).to(tl.int32)
    ROW: tl.constexpr = (WIDTH + 31) // 32 * 20
    there = writes & (block * 32 < WIDTH)
    numbers = (stored + token * ROW + block * 20).to(tl.pointer_type(tl.float16), bitcast=True)
    tl.store(numbers, scale, mask=there)
    tl.store(numbers + 1, start, mask=there)
    codes = stored + token * ROW + block[:, None] * 20 + 4 + i[None, :]
    tl.store(codes, (low | (high << 4)).to(tl.uint8), mask=there[:, None])


@triton.jit
def store_row(x, row, stored, scales, token, writes, KIND: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr):
    """One row of x, converted."""
    if KIND == "u8":
        store_nibbles(x, row, stored, token, writes, WIDTH, D // 32)
    else:
        d = tl.arange(0, D)
        inside = (d < WIDTH) & writes
        value = tl.load(x + row + d, mask=inside, other=0.0)
        at = token * WIDTH + d
        if KIND == "i8":
            store_bytes(value, at, inside, stored, scales, token, writes)
        elif KIND == "bf16":
            tl.store(stored + at, as_bf16(value), mask=inside)
        else:
            tl.store(stored + at, value.to(stored.dtype.element_ty), mask=inside)


@triton.jit
def kv_store(
    k,
    v,
    keys,
    values,
    key_scales,
    value_scales,
    slots,
    slot_count,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    D: tl.constexpr,
):
    """k, v [R, K, D] into the slot of each row; a slot outside the cache stores nothing. Grid: rows, heads."""
    row, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + row)
    writes = (slot >= 0) & (slot < slot_count)
    slot = tl.where(writes, slot, 0)
    token = ((slot // PAGE).to(tl.int64) * KV_HEADS + head) * PAGE + slot % PAGE
    own = (row * KV_HEADS + head).to(tl.int64) * WIDTH
    store_row(k, own, keys, key_scales, token, writes, KEYS, WIDTH, D)
    store_row(v, own, values, value_scales, token, writes, VALUES, WIDTH, D)
