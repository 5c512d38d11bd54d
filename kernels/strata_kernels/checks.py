"""Refusals shared by the ops: a tensor of the wrong kind is an error with its name and numbers, never a crash."""

from __future__ import annotations

import torch
from torch import Tensor


def dense(tensor: Tensor, name: str, shape: tuple[int | None, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """`tensor` itself if it is a contiguous CPU tensor of this dtype and shape (None: any size).

    Raises: TypeError for another kind, dtype or device; ValueError for another shape or strides.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: a tensor is needed, not {type(tensor).__name__}")
    if tensor.dtype != dtype:
        raise TypeError(f"{name}: {dtype} is needed, not {tensor.dtype}")
    if tensor.device.type != "cpu":
        raise TypeError(f"{name}: a CPU tensor is needed, not one on {tensor.device}")
    wrong = tensor.dim() != len(shape) or any(
        want is not None and have != want for have, want in zip(tensor.shape, shape, strict=True)
    )
    if wrong:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name}: shape [{wanted}] is needed, not {list(tensor.shape)}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: a contiguous tensor is needed, not strides {tuple(tensor.stride())}")
    return tensor


def extent(tensor: Tensor) -> tuple[int, int]:
    """First address and the one after the last, of a contiguous tensor."""
    start = tensor.data_ptr()
    return start, start + tensor.numel() * tensor.element_size()


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two contiguous tensors share memory."""
    (a0, a1), (b0, b1) = extent(a), extent(b)
    return a0 < b1 and b0 < a1


def apart(out: Tensor, name: str, *inputs: Tensor) -> None:
    """Raises ValueError when `out` shares memory with an input."""
    if any(overlap(out, tensor) for tensor in inputs):
        raise ValueError(f"{name}: the output shares memory with an input")


def same_or_apart(out: Tensor, name: str, *inputs: Tensor) -> None:
    """Raises ValueError when `out` overlaps an input without being it."""
    for tensor in inputs:
        if overlap(out, tensor) and extent(out) != extent(tensor):
            raise ValueError(f"{name}: the output overlaps part of an input")
