"""Operations of image towers in plain torch f32: layer norm, GELU, and rows put among others."""

from __future__ import annotations

import torch
from torch import Tensor

from strata_kernels.reference.dense import require_inside


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> None:
    """out = (x - mean) * rsqrt(variance + eps) * weight + bias over the last dimension."""
    for row, target in zip(x, out, strict=True):
        centred = row - row.mean(-1, keepdim=True)
        inverse = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
        target.copy_(centred * inverse * weight + bias)


def gelu(x: Tensor, out: Tensor, tanh: bool) -> None:
    """out = x * Phi(x); with `tanh` by Phi(x) ~ (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2."""
    for row, target in zip(x, out, strict=True):
        target.copy_(torch.nn.functional.gelu(row.clone(), approximate="tanh" if tanh else "none"))


def put_rows(x: Tensor, index: Tensor, column: int, out: Tensor, add: bool) -> None:
    """out[r] (+)= x[index[r], column : column + W] where index[r] >= 0."""
    rows = (index >= 0).nonzero().flatten()
    chosen = index[rows].long()
    require_inside(chosen, x.shape[0], "put_rows: an index lies outside the rows")
    part = x[chosen, column : column + out.shape[1]]
    out[rows] = out[rows] + part if add else part
