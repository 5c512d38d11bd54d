"""Random stored weights: bit patterns of any GGUF type that decode to finite values of a wanted spread.

Every bit pattern is a valid code, so a block is random bytes with its scale fields set. How large a scale has to be is
measured: blocks of scale 1 are decoded by the gguf package and their standard deviation taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import gguf
import numpy as np

from strata_engine.formats.quant import FORMATS

# byte offset of each f16 scale -> its multiple of the block's scale; minimums are chosen for a mean near zero
_HALVES: dict[str, dict[int, float]] = {
    "Q4_0": {0: 1}, "Q4_1": {0: 1, 2: -7.5}, "Q5_0": {0: 1}, "Q5_1": {0: 1, 2: -15.5}, "Q8_0": {0: 1},
    "Q1_0": {0: 1}, "Q2_0": {0: 1},
    "Q2_K": {80: 1, 82: 1.5}, "Q3_K": {108: 1}, "Q4_K": {0: 1, 2: 7.5}, "Q5_K": {0: 1, 2: 15.5}, "Q6_K": {208: 1},
    "IQ1_S": {0: 1}, "IQ2_XXS": {0: 1}, "IQ2_XS": {0: 1}, "IQ2_S": {0: 1}, "IQ3_XXS": {0: 1}, "IQ3_S": {0: 1},
    "IQ4_NL": {0: 1}, "IQ4_XS": {0: 1}, "TQ1_0": {52: 1}, "TQ2_0": {64: 1},
}  # fmt: skip
_FLOATS = ("F32", "F16", "BF16")
# our own types: their f32 scale is at the start, in I4 and I8 a zero follows; spread of their codes
_OWN = {"I4_32": 21.25**0.5, "I4_128": 21.25**0.5, "I8_32": 74.0, "I8_128": 74.0, "F8_32": 93.0, "F8_128": 93.0}
_PACKAGE_LACKS = {"Q1_0": 1.0, "Q2_0": 1.5**0.5, **_OWN}  # spread of these blocks at scale 1, from their formulas
TYPES = (*_FLOATS, *_HALVES, "IQ1_M", "MXFP4", "NVFP4")
_CHUNK_BYTES = 16 << 20


def chunks(random: np.random.Generator, type_name: str, count: int, spread: float) -> Iterator[np.ndarray]:
    """`count` weights of standard deviation `spread` as u8 arrays of at most 16 MiB. `count` must be whole blocks."""
    storage = FORMATS[type_name]
    blocks, odd = divmod(count, storage.block)
    if odd:
        raise ValueError(f"{count} weights are not whole {type_name} blocks of {storage.block}")
    most = max(1, _CHUNK_BYTES // storage.block_bytes)
    for start in range(0, blocks, most):
        yield _some(random, type_name, min(most, blocks - start), spread)


def _some(random: np.random.Generator, type_name: str, blocks: int, spread: float) -> np.ndarray:
    if type_name in _FLOATS:
        return _floats(random, type_name, blocks, spread)
    stored = np.frombuffer(random.bytes(blocks * FORMATS[type_name].block_bytes), np.uint8).reshape(blocks, -1).copy()
    scale = spread / _unit(type_name) * random.uniform(0.8, 1.2, (blocks, 1))
    set_scales(stored, type_name, scale)
    return stored


def _floats(random: np.random.Generator, type_name: str, count: int, spread: float) -> np.ndarray:
    values = random.standard_normal(count, np.float32) * np.float32(spread)
    if type_name == "F16":
        return values.astype(np.float16).view(np.uint8)
    if type_name == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.view(np.uint8)


@cache
def _unit(type_name: str) -> float:
    """Standard deviation of the values of blocks whose scale is 1."""
    if type_name in _PACKAGE_LACKS:
        return _PACKAGE_LACKS[type_name]
    raw = np.random.default_rng(0).bytes(4096 * FORMATS[type_name].block_bytes)
    stored = np.frombuffer(raw, np.uint8).reshape(4096, -1).copy()
    set_scales(stored, type_name, np.ones((4096, 1)))
    return float(gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[type_name]).std())


def set_scales(stored: np.ndarray, type_name: str, scale: np.ndarray) -> None:
    """Write scale [n, 1] into the scale fields of stored u8 [n, bytes], so that random bytes become a valid block."""
    if type_name in _OWN:
        stored[:, :4] = scale.astype("<f4").view(np.uint8).reshape(-1, 4)
        if type_name[0] == "I":  # the middle of unsigned codes, and a few around it
            middle = 7 if type_name[1] == "4" else 0
            stored[:, 4] = ((stored[:, 4] & 3).astype(np.int8) - 2 + middle).view(np.uint8)
    elif type_name == "MXFP4":  # a power of two, halved by the decoder
        stored[:, :1] = np.clip(np.rint(np.log2(scale)) + 128, 1, 254)
    elif type_name == "NVFP4":  # four scales of 4 exponent and 3 mantissa bits, bias 7, halved by the decoder
        codes = np.arange(1, 127)
        known = np.where(codes < 8, codes / 512, (1 + codes % 8 / 8) * np.exp2(codes // 8 - 7.0))
        stored[:, :4] = 1 + np.searchsorted(known, scale * 2).clip(0, 125)
    elif type_name == "IQ1_M":  # the nibbles of one f16 are the high halves of four bytes
        half = scale.astype(np.float16).view(np.uint16)
        for part in range(4):
            at = 49 + 2 * part
            stored[:, at : at + 1] = (stored[:, at : at + 1] & 15) | ((half >> (4 * part)) & 15).astype(np.uint8) << 4
    else:
        for at, multiple in _HALVES[type_name].items():
            stored[:, at : at + 2] = (scale * multiple).astype(np.float16).view(np.uint8).reshape(-1, 2)
