"""Arrays in a device's memory: an address, a shape and a type over a block that an allocator made.

Always contiguous. A block knows how to read and write its own bytes, so nothing here names a device: the same arrays
stand for host memory (Triton's interpreter), for memory of a driver, and for addresses without memory (planning).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from strata_kernels.arrays import NUMPY_TYPES, address, type_name

ALIGNMENT = 256  # of every block, as the drivers' own allocations

# i64 holds addresses, i16 what a kernel sees of bf16
DTYPES: dict[str, np.dtype[Any]] = {**NUMPY_TYPES, "i64": np.dtype(np.int64), "i16": np.dtype(np.int16)}
POINTERS = {
    "f32": "*fp32",
    "f16": "*fp16",
    "bf16": "*i16",
    "i16": "*i16",
    "i32": "*i32",
    "i64": "*i64",
    "u8": "*u8",
    "i8": "*i8",
}


class Block(Protocol):
    """A piece of a device's memory; given back when nothing refers to it any more. Offsets and sizes in bytes."""

    address: int
    nbytes: int

    def read(self, offset: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` from here; waits for what runs."""
        ...

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        """Put `data` here."""
        ...

    def send(self, offset: int, data: NDArray[np.uint8]) -> None:
        """As `write`, but `data` (of `pinned`, where a block has that) must stay as it is until `settle`."""
        ...

    def fetch(self, offset: int, out: NDArray[np.uint8]) -> None:
        """As `read`, but `out` is filled no sooner than at `settle`."""
        ...

    def settle(self) -> None:
        """Wait for all that was asked of the block's device."""
        ...

    def fill(self, offset: int, nbytes: int, value: int) -> None:
        """Set so many bytes to `value`."""
        ...

    def copy(self, offset: int, source: Block, source_offset: int, nbytes: int) -> None:
        """Copy from another block of the same device."""
        ...


class Allocator(Protocol):
    """Makes blocks. `host`: their memory is the host's, so its arrays can be taken as they are."""

    host: bool

    def allocate(self, nbytes: int) -> Block:
        """An uninitialised block. Raises MemoryError with the numbers."""
        ...


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """Elements of type `dtype` (DTYPES), row-major without gaps, from `offset` bytes into `block`."""

    block: Block
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def address(self) -> int:
        """Where the first element lies on the device."""
        return self.block.address + self.offset

    @property
    def count(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.count * DTYPES[self.dtype].itemsize

    @property
    def pointer_type(self) -> str:
        """Triton's name of a pointer to it; "?" behind it: not at a multiple of 16 bytes."""
        return POINTERS[self.dtype] + ("?" if self.address % 16 else "")

    def reshape(self, *shape: int | tuple[int, ...]) -> DeviceArray:
        """The same elements in another shape; one size may be -1. Raises ValueError."""
        first = shape[0]
        wanted = list(first) if isinstance(first, tuple) else [int(size) for size in shape if isinstance(size, int)]
        if -1 in wanted:
            at = wanted.index(-1)
            known = prod(size for i, size in enumerate(wanted) if i != at)
            wanted[at] = self.count // known if known else 0
        if prod(wanted) != self.count:
            raise ValueError(f"reshape: {self.shape} has {self.count} elements, {shape} has not")
        return DeviceArray(self.block, self.offset, tuple(wanted), self.dtype)

    def view(self, dtype: str) -> DeviceArray:
        """The same bytes as elements of another type; the last dimension changes with the size."""
        size = self.shape[-1] * DTYPES[self.dtype].itemsize // DTYPES[dtype].itemsize
        return DeviceArray(self.block, self.offset, (*self.shape[:-1], size), dtype)

    def __getitem__(self, key: Any, /) -> DeviceArray:
        """Numbers, or a slice as the last of them: what lies in one piece. Raises IndexError, ValueError."""
        keys = key if isinstance(key, tuple) else (key,)
        shape, offset = list(self.shape), self.offset
        for at, one in enumerate(keys):
            inner = prod(shape[1:]) * DTYPES[self.dtype].itemsize
            if isinstance(one, slice):
                start, stop, step = one.indices(shape[0])
                if step != 1 or at != len(keys) - 1:
                    raise ValueError(f"{key} of {self.shape} does not lie in one piece")
                shape[0] = max(0, stop - start)
                return DeviceArray(self.block, offset + start * inner, tuple(shape), self.dtype)
            index = int(one)
            if not -shape[0] <= index < shape[0]:
                raise IndexError(f"{key} is outside {self.shape}")
            offset += index % shape[0] * inner
            shape = shape[1:]
        return DeviceArray(self.block, offset, tuple(shape), self.dtype)

    def __setitem__(self, key: Any, value: Any, /) -> None:
        """Zero, or the elements of an array of the same size: of the device, or numpy's."""
        part = self if key is Ellipsis else self[key]
        if isinstance(value, DeviceArray):
            if value.nbytes != part.nbytes:
                raise ValueError(f"{value.shape} does not fit {part.shape}")
            part.block.copy(part.offset, value.block, value.offset, part.nbytes)
        elif isinstance(value, (int, float)) and value == 0:
            part.block.fill(part.offset, part.nbytes, 0)
        else:
            whole = np.broadcast_to(np.asarray(value, DTYPES[self.dtype]), part.shape)
            part.write(np.ascontiguousarray(whole))

    def copy(self) -> DeviceArray:
        """The same elements in a block of their own."""
        other = DeviceArray(self.block.like(self.nbytes), 0, self.shape, self.dtype)  # type: ignore[attr-defined]
        other[...] = self
        return other

    def write(self, values: NDArray[Any]) -> None:
        """Put the bytes of numpy's elements here."""
        data = values.reshape(-1).view(np.uint8)
        if data.nbytes != self.nbytes:
            raise ValueError(f"{data.nbytes} bytes do not fit {self.nbytes}")
        self.block.write(self.offset, data)

    def numpy(self) -> NDArray[Any]:
        """A copy on the host."""
        out = np.empty(self.shape, DTYPES[self.dtype])
        self.block.read(self.offset, out.reshape(-1).view(np.uint8))
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """What numpy makes of it: a copy on the host."""
        return self.numpy() if dtype is None else self.numpy().astype(dtype)


class HostBlock:
    """Memory of this process. `keep`: whose memory it is."""

    def __init__(self, start: int, nbytes: int, keep: object) -> None:
        self.address, self.nbytes, self._keep = start, nbytes, keep

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """All of it as numpy, in place."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.nbytes).from_address(self.address))

    def read(self, offset: int, out: NDArray[np.uint8]) -> None:
        """As Block."""
        out[:] = self.bytes[offset : offset + out.nbytes]

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        """As Block."""
        self.bytes[offset : offset + data.nbytes] = data

    send, fetch = write, read

    def settle(self) -> None:
        """As Block: nothing runs meanwhile."""

    def fill(self, offset: int, nbytes: int, value: int) -> None:
        """As Block."""
        self.bytes[offset : offset + nbytes] = value

    def copy(self, offset: int, source: Block, source_offset: int, nbytes: int) -> None:
        """As Block."""
        ctypes.memmove(self.address + offset, source.address + source_offset, nbytes)

    def like(self, nbytes: int) -> HostBlock:
        """A new block beside this one."""
        return HostAllocator().allocate(nbytes)


class HostAllocator:
    """Blocks of this process's own memory, for Triton's interpreter.

    `host` False: its arrays are taken for a device's, so that tests see whatever touches them from the host.
    """

    def __init__(self, host: bool = True) -> None:
        self.host = host

    def allocate(self, nbytes: int) -> HostBlock:
        """As Allocator."""
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        start = address(raw)
        return HostBlock(start + -start % ALIGNMENT, nbytes, raw)


def wrap(array: Any) -> DeviceArray:
    """A contiguous array of numpy or torch in host memory, in place. Raises TypeError for a type no kernel takes."""
    name = type_name(array) or {"int64": "i64", "torch.int64": "i64"}.get(str(array.dtype), "")
    if not name:
        raise TypeError(f"elements of type {array.dtype} are nothing to a kernel")
    return DeviceArray(HostBlock(address(array), array.nbytes, array), 0, tuple(array.shape), name)


def round_up(count: int, unit: int = ALIGNMENT) -> int:
    """The next multiple of `unit`."""
    return -(-count // unit) * unit
