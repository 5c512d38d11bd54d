"""Arrays of the CPU: the names of their types, making them, and looking at them as addresses.

An array is numpy's. Torch tensors in CPU memory are taken too, by what they offer and without importing torch.
"""

from __future__ import annotations

from ctypes import addressof, c_char
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

# bf16 has no numpy type: u16 holds its bits, and nothing else is ever u16 here
NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "i32": np.dtype(np.int32),
    "u8": np.dtype(np.uint8),
    "i8": np.dtype(np.int8),
}
_NAMES: dict[Any, str] = {dtype: name for name, dtype in NUMPY_TYPES.items()}
_TORCH_NAMES = {
    "torch.float32": "f32",
    "torch.float16": "f16",
    "torch.bfloat16": "bf16",
    "torch.int32": "i32",
    "torch.uint8": "u8",
    "torch.int8": "i8",
}


@dataclass(slots=True, eq=False)
class Seen:
    """A contiguous array as the kernels see it: bytes start..end-1, elements. Keeps the array alive.

    Never changed; not frozen because that makes making one several times as dear, and a step is recorded from hundreds.
    """

    array: Any
    start: int
    end: int
    shape: tuple[int, ...]
    count: int

    def overlaps(self, other: Seen) -> bool:
        """Whether the two share memory."""
        return self.start < other.end and other.start < self.end

    def same_bytes(self, other: Seen) -> bool:
        """Whether the two are the same bytes."""
        return self.start == other.start and self.end == other.end


def see(array: Any) -> Seen:
    """Address, extent and shape of a contiguous array in CPU memory."""
    shape = tuple(array.shape)
    start = address(array)
    return Seen(array, start, start + array.nbytes, shape, prod(shape))


def address(array: Any) -> int:
    """Where the first element lies."""
    memory: Any = array  # numpy's stubs do not say that it is a buffer
    if type(array) is not np.ndarray:
        return array.data_ptr()
    try:  # twenty times as fast as what numpy offers; a step is recorded from hundreds of arrays
        return addressof(c_char.from_buffer(memory))
    except (TypeError, ValueError):  # read-only, empty, or with gaps
        return array.__array_interface__["data"][0]


def type_name(array: Any) -> str:
    """ "f32", "f16", "bf16", "i32", "u8", "i8"; "" for any other type of element."""
    if type(array) is np.ndarray:
        return _NAMES.get(array.dtype, "")
    return _TORCH_NAMES.get(str(array.dtype), "")


def is_array(thing: object) -> bool:
    """Whether it can be looked at: numpy's own arrays, or what offers a data pointer as tensors do."""
    return type(thing) is np.ndarray or hasattr(thing, "data_ptr")


def in_one_piece(array: Any) -> bool:
    """Whether the elements lie in memory in order, without gaps."""
    if type(array) is np.ndarray:
        return array.flags.c_contiguous
    return array.is_contiguous()


def place(array: Any) -> str:
    """Kind of device: "cpu", or what a tensor says."""
    return "cpu" if type(array) is np.ndarray else str(array.device.type)


def zeros(*shape: int, dtype: str = "f32") -> NDArray[Any]:
    """Zeros that take memory when they are first written: they come from the system as untouched pages."""
    return np.zeros(shape, NUMPY_TYPES[dtype])


def constant(values: NDArray[Any]) -> NDArray[Any]:
    """`values` for the CPU's operations: themselves, in one piece."""
    return np.ascontiguousarray(values)


def host(array: Any, read: bool = False) -> NDArray[Any]:
    """An array of `zeros` as numpy, in place; the CPU's arrays are numpy's."""
    return array
