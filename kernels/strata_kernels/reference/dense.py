"""Row operations in plain torch f32: embedding, norm, matrix product, activation, rotary angles.

Each row is computed alone, on fresh tensors whose shape depends only on the row's width. Batched torch calls round
differently with the number of rows (matrix blocking, vector tails), and a row must not depend on its batch mates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from strata_kernels.ops import Array, Rotary, Weight
from strata_kernels.reference.quant import BLOCKS, unpack
from strata_kernels.reference.tensors import tensor

_CHUNK_ELEMENTS = 1 << 22  # bounds what the decoders' temporaries take


def dequantise(weight: Weight) -> Tensor:
    """The whole matrix as f32 [N, K]. Raises ValueError for a layout that is not the file's."""
    require_file_layout(weight)
    data = tensor(weight.data)
    out = torch.empty(weight.rows, weight.cols, dtype=torch.float32)
    step = max(1, _CHUNK_ELEMENTS // weight.cols)
    for start in range(0, weight.rows, step):
        out[start : start + step] = unpack(weight.type, data[start : start + step])
    if weight.order is None:
        return out
    sorted_back = torch.empty_like(out)
    sorted_back[:, tensor(weight.order).long()] = out
    return sorted_back


def require_file_layout(weight: Weight) -> None:
    """Raises ValueError when the matrix is of an unknown type or was packed by another maker of operations."""
    if weight.type not in BLOCKS:
        raise ValueError(f"the reference operations have no decoder for {weight.type}")
    if weight.layout != "file":
        raise ValueError(f"the reference operations read the file's layout, not {weight.layout!r}")


def require_inside(numbers: Tensor, count: int, message: str) -> None:
    """Raises IndexError unless all are in 0..count-1; torch would take negative ones from the end."""
    if numbers.numel() and (int(numbers.min()) < 0 or int(numbers.max()) >= count):
        raise IndexError(message)


def embed(ids: Tensor, table: Weight, out: Tensor) -> None:
    """out[R, W] = dequantised rows `ids` of the table."""
    require_file_layout(table)
    require_inside(ids, table.rows, "embed: an id lies outside the table")
    out.copy_(unpack(table.type, tensor(table.data)[ids.long()]))


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """out = x * rsqrt(mean(x^2) + eps) * weight over the last dimension."""
    for row, target in zip(x, out, strict=True):
        row = row.clone()  # a fresh tensor has a known alignment, which vector code may depend on
        inverse = torch.rsqrt(row.square().mean(-1, keepdim=True) + eps)
        target.copy_(row * inverse * weight)


def linear(x: Tensor, matrix: Tensor, out: Tensor, bias: Tensor | None, add: bool) -> None:
    """out[R, N] (+)= x[R, K] @ matrix[N, K].T (+ bias), one matrix-vector product a row."""
    for row, target in zip(x, out, strict=True):
        product = torch.mv(matrix, row.clone())
        if bias is not None:
            product += bias
        if add:
            product += target
        target.copy_(product)


def silu_mul(gate: Tensor, up: Tensor, out: Tensor) -> None:
    """out = silu(gate) * up."""
    for row, factor, target in zip(gate, up, out, strict=True):
        target.copy_(torch.nn.functional.silu(row.clone()) * factor)


def rope(x: Tensor, positions: Tensor, rotary: Rotary) -> None:
    """Rotate the first 2n elements of each head of x [R, H, D] by position * inverse frequency, in place.

    positions [R], or [3, R] of which rotary.axes [n] chooses.
    """
    frequencies = tensor(rotary.inverse_frequencies)
    n = frequencies.numel()
    own = (
        positions[:, None].expand(-1, n)
        if rotary.axes is None or positions.dim() == 1
        else (positions[tensor(rotary.axes).long()].T)
    )
    for row, place in zip(x, own, strict=True):
        angles = frequencies * place.float()
        cos, sin = angles.cos() * rotary.scale, angles.sin() * rotary.scale
        first, second = _pairs(row, n, rotary.adjacent)
        rotated = first * cos - second * sin, second * cos + first * sin
        first.copy_(rotated[0])
        second.copy_(rotated[1])


def _pairs(row: Tensor, n: int, adjacent: bool) -> tuple[Tensor, Tensor]:
    """Views [H, n] of the two halves of every rotated pair of row [H, D]."""
    if adjacent:
        return row[:, 0 : 2 * n : 2], row[:, 1 : 2 * n : 2]
    return row[:, :n], row[:, n : 2 * n]


def check_outputs(x: Array, weights: Sequence[Weight], outs: Sequence[Array]) -> None:
    """Raises ValueError when shapes do not fit together."""
    for weight, out in zip(weights, outs, strict=True):
        if x.shape[-1] != weight.cols or tuple(out.shape) != (x.shape[0], weight.rows):
            shapes = f"x {tuple(x.shape)}, weight ({weight.rows}, {weight.cols}), out {tuple(out.shape)}"
            raise ValueError(f"matrix product of unfitting shapes: {shapes}")
