"""How a matrix of codes lies on a GPU: "cells", one shape for every storage type that is not a float.

A cell is eight codes of one row, k = 32 g + 4 i + j with i = 0..7, for a group g of 32 columns and j = 0..3. Its bits
lie in planes (triton/unpack.py says how), each [N, groups, 4], so the four cells of a group are 16 bytes of words, and
the same program takes codes of one to eight bits. Behind the planes come scales as the file has them, so the values
multiplied are exactly the stored ones. A value is factor * scale * part * (code's value - offset), plus the least value
or less the zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from strata_kernels.gpu.arrays import DTYPES

GROUP = 32
ALIGN = 16  # of every section, in bytes
LAYOUT = "cells"
FLOATS = {"F32": "f32", "F16": "f16", "BF16": "i16"}  # stored type -> elements; they lie as in the file


@dataclass(frozen=True)
class Cells:
    """One storage type.

    `bits` of a code; `value`: what a code stands for (unpack_value). `block`: columns of a scale of type `scale`
    ("f32", "f16", "e8m0"); `part`: columns of a whole number that multiplies it, 0 = none. `low`: "none"; "least": an
    f16 a block that is added; "parts": the same, subtracted, times a number of each part; "zero": an i8 a block, the
    code that stands for 0. `file`: columns and bytes of a block in the file.
    """

    file: tuple[int, int]
    bits: int
    block: int
    value: str = "affine"
    scale: str = "f16"
    part: int = 0
    low: str = "none"
    offset: int = 0
    factor: float = 1

    def check(self, cols: int) -> None:
        """Raises ValueError when rows of so many columns are not whole blocks."""
        if cols % self.file[0]:
            raise ValueError(f"{cols} columns are not whole blocks of {self.file[0]}")

    @property
    def planes(self) -> tuple[bool, bool, bool]:
        """Whether codes have words, pairs, bits."""
        return self.bits >= 4, self.bits in (2, 3, 6), self.bits in (1, 3, 5)


CELLS: dict[str, Cells] = {
    "Q4_0": Cells((32, 18), 4, 32, offset=8),
    "Q4_1": Cells((32, 20), 4, 32, low="least"),
    "Q5_0": Cells((32, 22), 5, 32, offset=16),
    "Q5_1": Cells((32, 24), 5, 32, low="least"),
    "Q8_0": Cells((32, 34), 8, 32, offset=128),
    "Q1_0": Cells((128, 18), 1, 128, value="sign"),
    "Q2_0": Cells((64, 18), 2, 64, offset=1),
    "Q2_K": Cells((256, 84), 2, 256, part=16, low="parts"),
    "Q3_K": Cells((256, 110), 3, 256, part=16, offset=4),
    "Q4_K": Cells((256, 144), 4, 256, part=32, low="parts"),
    "Q5_K": Cells((256, 176), 5, 256, part=32, low="parts"),
    "Q6_K": Cells((256, 210), 6, 256, part=16, offset=32),
    "IQ4_NL": Cells((32, 18), 4, 32, value="curve"),
    "IQ4_XS": Cells((256, 136), 4, 256, value="curve", part=32),
    "MXFP4": Cells((32, 17), 4, 32, value="fp4", scale="e8m0"),
    "NVFP4": Cells((64, 36), 4, 16, value="fp4"),
    "TQ1_0": Cells((256, 54), 2, 256, offset=1),
    "TQ2_0": Cells((256, 66), 2, 256, offset=1),
    "IQ1_S": Cells((256, 50), 3, 256, value="ternary", part=32, factor=1 / 8),
    "IQ1_M": Cells((256, 56), 3, 256, value="ternary", part=16, factor=1 / 8),
    "IQ2_XXS": Cells((256, 66), 3, 256, value="three", part=32, factor=1 / 8),
    "IQ2_XS": Cells((256, 74), 3, 256, value="three", part=16, factor=1 / 8),
    "IQ2_S": Cells((256, 82), 3, 256, value="three", part=16, factor=1 / 8),
    "IQ3_XXS": Cells((256, 98), 4, 256, value="steep", part=32, factor=1 / 4),
    "IQ3_S": Cells((256, 110), 4, 256, value="odd", part=32),
    "I4_32": Cells((32, 21), 4, 32, scale="f32", low="zero"),
    "I4_128": Cells((128, 69), 4, 128, scale="f32", low="zero"),
    "I8_32": Cells((32, 37), 8, 32, scale="f32", low="zero", offset=128),
    "I8_128": Cells((128, 133), 8, 128, scale="f32", low="zero", offset=128),
    "F8_32": Cells((32, 36), 8, 32, value="fp8", scale="f32"),
    "F8_128": Cells((128, 132), 8, 128, value="fp8", scale="f32"),
}  # fmt: skip

SCALE_TYPES = {"f32": "f32", "f16": "f16", "e8m0": "u8"}
CURVE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # IQ4_NL and IQ4_XS


@dataclass(frozen=True)
class Section:
    """An array of a packed matrix: `offset` bytes from its start. shape[0] is the rows, but of `gain`."""

    name: str
    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize


def sections(type_name: str, rows: int, cols: int) -> tuple[dict[str, Section], int]:
    """The arrays that a packed [rows, cols] matrix consists of, by name, and its bytes in all.

    The bytes are a multiple of ALIGN, so matrices of one shape may stand in a row. "gain" (f32 [4]) is last: the power
    of two that brings the largest value into f16's range, and one over it. Raises KeyError, ValueError.
    """
    parts = _floats(type_name, rows, cols) if type_name in FLOATS else _cells(CELLS[type_name], rows, cols)
    found: dict[str, Section] = {}
    at = 0
    for name, dtype, shape in [*parts, ("gain", "f32", (4,))]:
        found[name] = Section(name, at, dtype, shape)
        at += -(-found[name].nbytes // ALIGN) * ALIGN
    return found, at


def packed_bytes(type_name: str, rows: int, cols: int) -> int:
    """Bytes of a packed matrix on a GPU. Raises KeyError, ValueError."""
    return sections(type_name, rows, cols)[1]


def _floats(type_name: str, rows: int, cols: int) -> list[tuple[str, str, tuple[int, ...]]]:
    return [("values", FLOATS[type_name], (rows, cols))]


def _cells(cells: Cells, rows: int, cols: int) -> list[tuple[str, str, tuple[int, ...]]]:
    cells.check(cols)
    words, pairs, bits = cells.planes
    groups, blocks = cols // GROUP, cols // cells.block
    out: list[tuple[str, str, tuple[int, ...]]] = []
    if words:
        out.append(("words", "i32", (rows, groups, 8 if cells.bits == 8 else 4)))
    if pairs:
        out.append(("pairs", "i16", (rows, groups, 4)))
    if bits:
        out.append(("bits", "u8", (rows, groups, 4)))
    out.append(("scales", SCALE_TYPES[cells.scale], (rows, blocks)))
    if cells.part:
        out.append(("parts", "i8", (rows, cols // cells.part)))
    if cells.low != "none":
        out.append(("lows", "i8" if cells.low == "zero" else "f16", (rows, blocks)))
    if cells.low == "parts":
        out.append(("low_parts", "u8", (rows, cols // cells.part)))
    return out
