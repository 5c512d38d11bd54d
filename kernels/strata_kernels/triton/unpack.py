"""Weights in cells, as gpu/cells.py describes them: eight codes k = 32 g + 4 i + j for each group g and j = 0..3.

A tile of cells is [rows, groups, 4]. Code i of each cell is taken from up to three planes: four bits from a word (bytes
0..3 hold i = 0..3 in their low halves and i = 4..7 in their high ones), two from a pair, one from a byte. Codes of
eight bits lie in two words.
"""

import triton
import triton.language as tl


@triton.jit
def load_cells(words, pairs, bits, cells, j, there, BITS: tl.constexpr):
    """The planes of a tile at these numbers of cells (those of one group in order, j = 0..3): word, more, pair, bit.

    Each i32; what a type has not is 0.
    """
    word, more, pair, bit = 0, 0, 0, 0
    if BITS == 8:
        firsts = cells // 4 * 8 + j  # so written that four of them are seen to lie in a row
        word = tl.load(words + firsts, mask=there, other=0)
        more = tl.load(words + firsts + 4, mask=there, other=0)
    elif BITS >= 4:
        word = tl.load(words + cells, mask=there, other=0)
    if (BITS == 2 or BITS == 3) or BITS == 6:
        pair = tl.load(pairs + cells, mask=there, other=0).to(tl.int32)
    if (BITS == 1 or BITS == 3) or BITS == 5:
        bit = tl.load(bits + cells, mask=there, other=0).to(tl.int32)
    return word, more, pair, bit


@triton.jit
def unpack_code(words, more, pairs, bits, i: tl.constexpr, BITS: tl.constexpr):
    """Code i of each cell, i32."""
    if BITS == 8:
        word = words if i < 4 else more
        code = (word >> (8 * (i % 4))) & 255
    elif BITS >= 4:
        code = (words >> (8 * (i % 4) + 4 * (i // 4))) & 15
        if BITS == 5:
            code |= ((bits >> i) & 1) << 4
        if BITS == 6:
            code |= ((pairs >> (2 * i)) & 3) << 4
    elif BITS >= 2:
        code = (pairs >> (2 * i)) & 3
        if BITS == 3:
            code |= ((bits >> i) & 1) << 2
    else:
        code = (bits >> i) & 1
    return code


@triton.jit
def as_float(code):
    """Whole numbers of less than 22 bits as f32, by putting them into a float's mantissa.

    Two operations at full rate; NVIDIA's conversion runs at a quarter of it.
    """
    return (code + 0x4B400000).to(tl.float32, bitcast=True) - 12582912.0


@triton.jit
def widen(values):
    """Stored floats as f32; i16 are the bits of bf16."""
    if values.dtype == tl.int16:
        return (values.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return values.to(tl.float32)


@triton.jit
def nibble_value(words, i: tl.constexpr):
    """Code i of cells of four bits, f32: left where it lies in the word's half, so that most need no shift."""
    UNIT: tl.constexpr = (256 if i % 2 == 1 else 1) * (16 if i >= 4 else 1)
    half = words if i % 4 < 2 else words >> 16
    number = ((half & (15 * UNIT)) | 0x4B000000).to(tl.float32, bitcast=True)
    return number * (1.0 / UNIT) - (8388608.0 / UNIT)


@triton.jit
def unpack_value(words, more, pairs, bits, curve, i: tl.constexpr, BITS: tl.constexpr, VALUE: tl.constexpr):
    """What code i of each cell stands for before it is scaled, f32."""
    if BITS == 4 and VALUE == "affine":
        return nibble_value(words, i)
    code = unpack_code(words, more, pairs, bits, i, BITS)
    if VALUE == "curve":  # sixteen values of any size
        return tl.load(curve + code)
    if VALUE == "fp8":  # the bits of a float of 4 + 3 bits, moved, are those of an f16 that is 2^8 times too small
        half = ((code & 0x7F) << 7) | ((code & 0x80) << 8)
        return half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    if VALUE == "fp4":  # 2 + 1 bits, 2^14 times too small; minus zero is zero
        half = ((code & 7) << 9) | ((code & 8) << 12)
        return half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 16384.0
    if VALUE == "sign":
        code = 2 * code - 1
    elif VALUE == "ternary":  # IQ1: eight times (-1, 0 or 1, and an eighth up or down)
        code = 8 * (code & 3) - 7 - 2 * (code >> 2)
    elif VALUE == "three":  # IQ2: 8, 25, 43 and a sign
        size = code & 3
        size = 8 + 17 * size + (size >> 1)
        code = size - 2 * size * (code >> 2)
    elif VALUE == "odd":  # IQ3_S: 1, 3, .. 15 and a sign
        size = 2 * (code & 7) + 1
        code = size - 2 * size * (code >> 3)
    elif VALUE == "steep":  # IQ3_XXS: 4, 12, .. 52, 62 and a sign
        size = code & 7
        size = 8 * size + 4 + 2 * ((size + 1) >> 3)
        code = size - 2 * size * (code >> 3)
    return as_float(code)


@triton.jit
def load_scales(scales, parts, at_block, at_part, mask, SCALE: tl.constexpr, PART: tl.constexpr, FACTOR: tl.constexpr):
    """What values are multiplied by, f32, at these places of blocks and of their parts."""
    scale = tl.load(scales + at_block, mask=mask, other=0)
    if SCALE == "e8m0":  # 2^(e - 127), of e = 0 the subnormal 2^-127
        wide = scale.to(tl.int32)
        scale = tl.where(wide == 0, 0x00400000, wide << 23).to(tl.float32, bitcast=True)
    else:
        scale = scale.to(tl.float32)
    if PART:
        scale *= tl.load(parts + at_part, mask=mask, other=0).to(tl.float32)
    if FACTOR != 1:
        scale *= FACTOR
    return scale


@triton.jit
def load_offsets(
    lows, low_parts, scale, at_block, at_part, mask, LOW: tl.constexpr, OFFSET: tl.constexpr
):  # fmt: skip
    """What is added to a scaled value, f32: a value is scale * code + offset."""
    if LOW == "least":  # a least value of the block
        offset = tl.load(lows + at_block, mask=mask, other=0).to(tl.float32)
    elif LOW == "parts":  # a multiple of the block's, of each part
        part = tl.load(low_parts + at_part, mask=mask, other=0).to(tl.float32)
        offset = -(tl.load(lows + at_block, mask=mask, other=0).to(tl.float32) * part)
    elif LOW == "zero":  # the code that stands for zero
        offset = -(scale * tl.load(lows + at_block, mask=mask, other=0).to(tl.float32))
    else:
        offset = -OFFSET * scale
    if OFFSET != 0 and LOW != "none":
        offset -= OFFSET * scale
    return offset
