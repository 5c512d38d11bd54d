"""Writers of quantised safetensors layouts, one element at a time from their descriptions: slow, unlike our readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
CHANNEL_RUN = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]


@dataclass(frozen=True)
class Codes:
    """A matrix as integers: unsigned codes [N, K], scales [N, G], zeros [N, G], the group of each column."""

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    groups: Sequence[int]
    bits: int = 4

    def values(self) -> Tensor:
        """What the matrix means, one element at a time."""
        out = np.empty(self.codes.shape, np.float32)
        for n in range(out.shape[0]):
            for k in range(out.shape[1]):
                g = self.groups[k]
                out[n, k] = float(self.scales[n, g]) * (int(self.codes[n, k]) - int(self.zeros[n, g]))
        return torch.from_numpy(out)


def random_codes(
    seed: int, outs: int, ins: int, group_size: int, bits: int = 4, groups: Sequence[int] | None = None
) -> Codes:
    """Every code and zero may occur. Scales are f16 numbers."""
    random = np.random.default_rng(seed)
    size = ins if group_size == -1 else group_size
    count = -(-ins // size)
    scales = random.standard_normal((outs, count)).astype(np.float16)
    codes = random.integers(0, 1 << bits, (outs, ins))
    zeros = random.integers(0, 1 << bits, (outs, count))
    return Codes(codes, scales, zeros, groups or [k // size for k in range(ins)], bits)


def words(row: Sequence[int], bits: int) -> list[int]:
    """Codes as one long bit string, lowest first, cut into signed 32-bit words."""
    whole = sum(int(code) << (bits * i) for i, code in enumerate(row))
    count = -(-len(row) * bits // 32)
    return [signed(whole >> (32 * i) & 0xFFFFFFFF) for i in range(count)]


def signed(word: int) -> int:
    """The i32 with these bits."""
    return word - (1 << 32) if word >> 31 else word


def int32(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of words as a tensor."""
    return torch.tensor(rows, dtype=torch.int32)


def gptq(matrix: Codes, version: int = 1, g_idx: bool = True, qzeros: bool = True) -> dict[str, Tensor]:
    """Codes packed along the input; zeros along the output, less one in version 1."""
    mask = (1 << matrix.bits) - 1
    stored = (matrix.zeros - (1 if version == 1 else 0)) & mask
    parts = {
        "qweight": int32([words(row, matrix.bits) for row in matrix.codes]).T.contiguous(),
        "scales": torch.from_numpy(matrix.scales.T.copy()),
    }
    if qzeros:
        parts["qzeros"] = int32([words(column, matrix.bits) for column in stored.T])
    if g_idx:
        parts["g_idx"] = torch.tensor(matrix.groups, dtype=torch.int32)
    return parts


def _awq_words(columns: np.ndarray) -> list[int]:
    found = []
    for c in range(len(columns) // 8):
        found.append(signed(sum(int(columns[8 * c + AWQ_COLUMNS[i]]) << (4 * i) for i in range(8))))
    return found


def awq(matrix: Codes) -> dict[str, Tensor]:
    """Codes and zeros packed along the output with interleaved columns."""
    return {
        "qweight": int32([_awq_words(row) for row in matrix.codes.T]),
        "qzeros": int32([_awq_words(row) for row in matrix.zeros.T]),
        "scales": torch.from_numpy(matrix.scales.T.copy()),
    }


def packed(matrix: Codes, symmetric: bool, g_idx: bool = False) -> dict[str, Tensor]:
    """compressed-tensors pack-quantized. The codes are offset already; zeros run downwards."""
    parts = {
        "weight_packed": int32([words(row, matrix.bits) for row in matrix.codes]),
        "weight_scale": torch.from_numpy(matrix.scales.copy()),
        "weight_shape": torch.tensor(matrix.codes.shape, dtype=torch.int64),
    }
    if not symmetric:
        columns = [words(column, matrix.bits) for column in matrix.zeros.T]
        parts["weight_zero_point"] = int32(columns).T.contiguous()
    if g_idx:
        parts["weight_g_idx"] = torch.tensor(matrix.groups, dtype=torch.int32)
    return parts


def qqq(codes: np.ndarray, s_channel: np.ndarray, s_group: np.ndarray | None) -> dict[str, Tensor]:
    """codes [N, K] as nibbles 0..15; s_channel f32 [N]; s_group f16 [N, K/128], None per channel."""
    outs, ins = codes.shape
    rows = []
    for kb in range(ins // 16):
        row = []
        for c in range(2 * outs):
            chunk, rem = divmod(c, 128)
            i, j = divmod(rem, 4)
            word = 0
            for lane in range(8):
                block, r = (1 - (lane & 1), lane // 2) if s_group is None else divmod(AWQ_COLUMNS[lane], 4)
                n, k = 64 * chunk + 16 * j + i // 4 + 8 * block, 16 * kb + 4 * (i % 4) + r
                word |= int(codes[n, k]) << (4 * lane)
            row.append(signed(word))
        rows.append(row)
    channel = [s_channel[32 * (p // 32) + CHANNEL_RUN[p % 32]] for p in range(outs)]
    parts = {"B": int32(rows), "s_channel": torch.tensor([channel], dtype=torch.float32)}
    if s_group is not None:
        true = [64 * (p // 64) + (p % 64) // 8 + 8 * (p % 8) for p in range(outs)]
        parts["s_group"] = torch.from_numpy(s_group[true].T.copy())
    return parts


def named(module: str, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parts under their names in a checkpoint."""
    return {f"{module}.{name}": part for name, part in parts.items()}
