"""Refusals shared by the ops: an array of the wrong kind is an error with its name and numbers, never a crash."""

from __future__ import annotations

from typing import Any

import numpy as np

from strata_kernels.arrays import NUMPY_TYPES, Seen, in_one_piece, is_array, place, see, type_name


def dense(array: Any, name: str, shape: tuple[int | None, ...], dtype: str = "f32") -> Seen:
    """`array` as the kernels see it, if it is contiguous, on the CPU, of this type and shape (None: any size).

    Raises: TypeError for another kind, type or device; ValueError for another shape or strides.
    """
    if type(array) is np.ndarray and array.dtype is NUMPY_TYPES[dtype] and array.flags.c_contiguous:
        have = array.shape  # the usual case first: a step is recorded from hundreds of arrays
        if have == shape or (len(have) == len(shape) and all(map(_fits, have, shape))):
            return see(array)
    return _dense(array, name, shape, dtype)


def _fits(have: int, want: int | None) -> bool:
    return want is None or have == want


def _dense(array: Any, name: str, shape: tuple[int | None, ...], dtype: str) -> Seen:
    """The same for any kind of array, step by step."""
    if not is_array(array):
        raise TypeError(f"{name}: an array is needed, not {type(array).__name__}")
    if type_name(array) != dtype:
        raise TypeError(f"{name}: {dtype} is needed, not {array.dtype}")
    if place(array) != "cpu":
        raise TypeError(f"{name}: a CPU array is needed, not one on {place(array)}")
    if len(array.shape) != len(shape) or not all(map(_fits, array.shape, shape)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name}: shape [{wanted}] is needed, not {list(array.shape)}")
    if not in_one_piece(array):
        raise ValueError(f"{name}: a contiguous array is needed; this one of shape {list(array.shape)} has gaps")
    return see(array)


def apart(out: Seen, name: str, *inputs: Seen) -> None:
    """Raises ValueError when `out` shares memory with an input."""
    for array in inputs:
        if out.overlaps(array):
            raise ValueError(f"{name}: the output shares memory with an input")


def same_or_apart(out: Seen, name: str, *inputs: Seen) -> None:
    """Raises ValueError when `out` overlaps an input without being it."""
    for array in inputs:
        if out.overlaps(array) and not out.same_bytes(array):
            raise ValueError(f"{name}: the output overlaps part of an input")
