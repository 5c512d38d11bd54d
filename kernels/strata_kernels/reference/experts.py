"""A mixture-of-experts layer in plain torch f32: router choice and the weighted sum of the chosen experts.

Rows are computed alone, like everything of the reference; a row's experts are summed from the most probable down.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from strata_kernels.ops import Experts, Weight

Matrix = Callable[[Weight], Tensor]


def choose(logits: Tensor, top_k: int, renormalise: bool) -> tuple[Tensor, Tensor]:
    """One row of router logits [E]: ids i64 and weights f32 [top_k], most probable first, lowest id among equals."""
    ids = torch.argsort(torch.nan_to_num(logits, nan=-torch.inf), descending=True, stable=True)[:top_k]
    weights = torch.softmax(logits.clone(), 0)[ids]
    return ids, weights / weights.sum() if renormalise else weights


def experts(x: Tensor, logits: Tensor, layer: Experts, matrix: Matrix, out: Tensor, add: bool) -> None:
    """out[R, W] (+)= sum of weight * down(silu(gate x) * up x) over each row's experts. `matrix`: f32 of a Weight."""
    for row, scores, target in zip(x, logits, out, strict=True):
        row, total = row.clone(), torch.zeros_like(row)
        for expert, weight in zip(*choose(scores, layer.top_k, layer.renormalise), strict=True):
            gate, up, down = (part[int(expert)] for part in (layer.gate, layer.up, layer.down))
            inner = torch.nn.functional.silu(torch.mv(matrix(gate), row)) * torch.mv(matrix(up), row)
            total += weight * torch.mv(matrix(down), inner)
        target.copy_(target + total if add else total)
