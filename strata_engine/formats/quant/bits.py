"""Small numbers packed densely into little-endian 32-bit words. Imports torch: only for use inside functions."""

from __future__ import annotations

import torch
from torch import Tensor

from strata_kernels.reference.blocks import fields


def dense(words: Tensor, bits: int, count: int) -> Tensor:
    """i32 [R, W] -> u8 [R, count]: code i of a row is bits i*bits.. of its words taken as one bit string.

    Raises ValueError when the words are too few.
    """
    if words.shape[1] * 32 < count * bits:
        raise ValueError(f"{words.shape[1]} words hold fewer than {count} codes of {bits} bits")
    if 8 % bits == 0:
        # flat first: a matrix of one column counts as contiguous whatever its stride, but cannot be viewed as bytes
        stored = words.reshape(-1).contiguous().view(torch.uint8)
        return fields(stored, range(0, 8, bits), (1 << bits) - 1).reshape(words.shape[0], -1)[:, :count]
    start = torch.arange(count) * bits
    word, shift = start // 32, start % 32
    wide = words.to(torch.int64) & 0xFFFFFFFF
    wide = torch.cat([wide, torch.zeros(words.shape[0], 1, dtype=torch.int64)], 1)
    pairs = wide[:, word] | wide[:, word + 1] << 32  # a code may lie across two words
    return ((pairs >> shift) & ((1 << bits) - 1)).to(torch.uint8)
