"""Matrices from a file's layout to a GPU's, on the host and piece by piece: never a whole matrix twice.

numpy only: the run path imports no torch. A piece is some rows; what is made of it goes to the device at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import frexp, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata_kernels.gpu.arrays import DTYPES, Allocator, DeviceArray
from strata_kernels.gpu.cells import CELLS, FLOATS, GROUP, LAYOUT, Cells, Section, sections
from strata_kernels.gpu.codes import TAKERS
from strata_kernels.ops import Weight

PIECE_BYTES = 8 << 20  # of a file's rows at a time; what is made of them is at most ten times that

# the largest size of what a code stands for, before scales
_LARGEST = {"sign": 1, "curve": 127, "fp8": 448, "fp4": 6, "ternary": 9, "three": 43, "odd": 15, "steep": 62}


def pack(weight: Weight, allocator: Allocator) -> Weight:
    """A matrix in file layout, packed. Raises ValueError for a type, shape or byte count that does not fit."""
    data = np.asarray(weight.data)
    row_bytes = _row_bytes(weight.type, weight.cols)
    if data.dtype != np.uint8 or data.nbytes != weight.rows * row_bytes:
        raise ValueError(
            f"{weight.type} {weight.rows} x {weight.cols} is {weight.rows * row_bytes} bytes, not {data.nbytes}"
        )
    rows = data.reshape(weight.rows, row_bytes)
    step = max(1, PIECE_BYTES // max(1, row_bytes))
    pieces = (rows[first : first + step] for first in range(0, weight.rows, step))
    return replace(pack_pieces(weight.type, weight.rows, weight.cols, pieces, allocator), order=weight.order)


def pack_pieces(
    type_name: str, rows: int, cols: int, pieces: Iterable[NDArray[np.uint8]], allocator: Allocator
) -> Weight:
    """A matrix whose rows come in runs, u8 [some rows, bytes of a row].

    Raises ValueError for a type or columns that do not fit, and when the runs do not make `rows`.
    """
    row_bytes = _row_bytes(type_name, cols)
    parts, nbytes = sections(type_name, rows, cols)
    out = DeviceArray(allocator.allocate(nbytes), 0, (nbytes,), "u8")
    first, largest = 0, 0.0
    for piece in pieces:
        taken = np.ascontiguousarray(np.asarray(piece)).view(np.uint8).reshape(-1, row_bytes)
        if first + len(taken) > rows:
            raise ValueError(f"there are more than {rows} rows to pack")
        planes, size = packed_rows(type_name, taken, cols)
        for name, values in planes.items():
            _section(out, parts[name])[first : first + len(values)].write(values)
        largest = max(largest, size)
        first += len(taken)
    if first != rows:
        raise ValueError(f"{first} of {rows} rows were there to pack")
    _section(out, parts["gain"]).write(gain_of(largest))
    return Weight(type_name, rows, cols, out, layout=LAYOUT)


def views(weight: Weight) -> dict[str, DeviceArray]:
    """The sections of a packed matrix by name. Raises TypeError for one that is not on a device."""
    parts, _ = sections(weight.type, weight.rows, weight.cols)
    data = weight.data
    if not isinstance(data, DeviceArray):
        raise TypeError(f"{type(data).__name__} is not an array of this device")
    return {name: _section(data, part) for name, part in parts.items()}


def packed_rows(type_name: str, rows: NDArray[np.uint8], cols: int) -> tuple[dict[str, NDArray[Any]], float]:
    """Some rows in file layout, u8 [n, bytes of a row], as they go into each section but `gain`.

    And a size that no value of them exceeds: for codes a bound from scales alone.
    """
    if type_name in FLOATS:
        values = rows.view(DTYPES[FLOATS[type_name]])
        wide = (values.astype(np.uint16).astype(np.uint32) << 16).view(np.float32) if type_name == "BF16" else values
        return {"values": values}, float(np.max(np.abs(wide), initial=0.0))
    cells = CELLS[type_name]
    taken = TAKERS[type_name](rows.reshape(-1, cells.file[1]))
    out = _code_planes(taken.codes.reshape(len(rows), cols // GROUP, GROUP), cells)
    bytes_of = {"parts": np.int8} | ({"lows": np.int8} if cells.low == "zero" else {})
    for name in ("scales", "parts", "lows", "low_parts"):
        values = getattr(taken, name)
        if values is not None:
            flat = np.ascontiguousarray(values.reshape(len(rows), -1))
            out[name] = flat.view(bytes_of.get(name, flat.dtype))
    return out, _largest(cells, out)


def gain_of(largest: float) -> NDArray[np.float32]:
    """The section `gain` of a matrix whose values are no larger: what makes them less than 2^15, and one over it."""
    exponent = 15 - frexp(largest)[1] if largest > 0 and isfinite(largest) else 0
    exponent = max(-100, min(100, exponent))
    return np.array([2.0**exponent, 2.0**-exponent, 0, 0], np.float32)


def _code_planes(codes: NDArray[np.uint8], cells: Cells) -> dict[str, NDArray[Any]]:
    """Codes u8 [n, groups, 32] in planes [n, groups, 4 or 8]."""
    n, groups, _ = codes.shape
    each = np.ascontiguousarray(codes.reshape(n, groups, 8, 4).swapaxes(2, 3))  # [n, groups, j, i]
    words, pairs, bits = cells.planes
    out: dict[str, NDArray[Any]] = {}
    if cells.bits == 8:
        halves = np.stack([each[..., :4], each[..., 4:]], 2)  # [n, groups, half, j, 4]
        out["words"] = np.ascontiguousarray(halves).view("<i4").reshape(n, groups, 8)
    elif words:
        low = each & 15
        out["words"] = (low[..., :4] | low[..., 4:] << 4).view("<i4").reshape(n, groups, 4)
    if pairs:
        two = (each >> 4 if cells.bits == 6 else each) & 3
        four = two[..., 0::4] | two[..., 1::4] << 2 | two[..., 2::4] << 4 | two[..., 3::4] << 6
        out["pairs"] = four.view("<i2").reshape(n, groups, 4)
    if bits:
        one = (each >> {1: 0, 3: 2, 5: 4}[cells.bits]) & 1
        out["bits"] = np.packbits(one, axis=-1, bitorder="little").reshape(n, groups, 4)
    return out


def _largest(cells: Cells, sections_of: dict[str, NDArray[Any]]) -> float:
    scales = sections_of["scales"].astype(np.float64)
    size = float(_LARGEST.get(cells.value, (1 << cells.bits) - 1)) + (128 if cells.low == "zero" else 0)
    if "parts" in sections_of:
        size *= float(np.abs(sections_of["parts"].astype(np.int32)).max(initial=0))
    scales = np.exp2(scales - 127) if cells.scale == "e8m0" else np.abs(scales)
    largest = size * cells.factor * float(scales.max(initial=0.0))
    if cells.low in ("least", "parts"):
        times = float(sections_of["low_parts"].max(initial=0)) if cells.low == "parts" else 1.0
        largest += times * float(np.abs(sections_of["lows"].astype(np.float32)).max(initial=0.0))
    return largest


def _row_bytes(type_name: str, cols: int) -> int:
    if type_name in FLOATS:
        return cols * DTYPES[FLOATS[type_name]].itemsize
    if type_name not in CELLS:
        raise ValueError(f"weight type {type_name} is not one of {', '.join((*FLOATS, *CELLS))}")
    CELLS[type_name].check(cols)
    block, nbytes = CELLS[type_name].file
    return cols // block * nbytes


def _section(data: DeviceArray, part: Section) -> DeviceArray:
    return DeviceArray(data.block, data.offset + part.offset, part.shape, part.dtype)
