"""Matrices: packing them, products with rows, rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from strata_kernels.gpu import packing
from strata_kernels.gpu.arrays import DeviceArray
from strata_kernels.gpu.cells import CELLS, CURVE, FLOATS, GROUP, LAYOUT
from strata_kernels.gpu.core import FEW_ROWS, Core
from strata_kernels.ops import Weight

# Tiles that compile without a spill on gfx1100, gfx1201 and sm_90 (benches/gpu_code.py counts). Those of few rows also
# fix the order of sums, so they may not depend on the number of rows.
OUTS = 4  # outputs of a one-warp program of few rows: its lanes read 512 bytes in a row of each
GROUPS = 32  # of 32 columns at a time there
ROWS_AT_ONCE = 2  # share what is read and unpacked there; with four, most types spill registers on one card or another
WIDTH = 256  # columns of floats at a time there
TILES = ((64, 64, 4), (128, 64, 8))  # rows, outputs, warps of a program of many rows: of up to 64 rows, of more
LONG_VALUES = ("odd", "fp4")  # what these codes stand for takes registers: four warps spill on gfx1201
CHUNK = 256  # columns that products of many rows take at a time; rows are padded to whole ones
FLOAT_STEP = 32
EMBED_GROUPS = 32
ROW_BLOCK = 1024  # elements of a row at a time where rows are converted

_CURVE = np.array(CURVE, np.float32)


@dataclass(frozen=True)
class Product:
    """One of the products of a call: a packed matrix, where results go, what is added."""

    weight: Weight
    out: Any
    bias: Any | None
    add: bool


class LinearOps(Core):
    """One group of GpuOps."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._packed_before: dict[int, tuple[Any, Weight]] = {}

    def pack(self, weight: Weight) -> Weight:
        """As Ops: cells, or floats as they are; 3 % more bytes for Q4_K, up to half more for codebooks (gpu/cells.py).

        Raises ValueError for a type or a byte count that does not fit.
        """
        if weight.layout == LAYOUT:
            return weight
        if weight.layout != "file":
            raise ValueError(f"a weight in layout {weight.layout!r} was not packed by these kernels")
        return packing.pack(weight, self.allocator)

    def pack_pieces(self, weight_type: str, rows: int, cols: int, pieces: Iterable[NDArray[np.uint8]]) -> Weight:
        """Like `pack` for a matrix whose rows come in runs, u8 [some rows, bytes of a row]. Raises ValueError."""
        return packing.pack_pieces(weight_type, rows, cols, pieces, self.allocator)

    def embed(self, ids: Any, table: Weight, out: Any) -> None:
        """As Ops; a row of NaN for a number outside the table. A table in file layout is packed when first seen."""
        weight, rows = self._packed(table), ids.shape[0]
        found, size = packing.views(weight), {"N": weight.rows, "K": weight.cols}
        if weight.type in FLOATS:
            block = ROW_BLOCK
            self._run(
                "embed_floats", (rows, -(-weight.cols // block)), (ids, found["values"], out), BLOCK=block, **size
            )
            return
        grid = (rows, -(-weight.cols // (GROUP * EMBED_GROUPS)))
        values = (ids, *self._cells(found), out)
        self._run("embed_cells", grid, values, GROUPS=EMBED_GROUPS, **size, **constants(weight.type))

    def linear(
        self,
        x: Any,
        weights: Sequence[Weight],
        outs: Sequence[Any],
        biases: Sequence[Any | None] | None = None,
        add: bool = False,
    ) -> None:
        """As Ops. Up to FEW_ROWS rows: f32 sums whose order the number of rows does not change.

        More: f16 products with f32 sums (both sides rounded to 11 bits), but for F32 matrices, which stay f32.
        Raises ValueError on shapes that do not fit.
        """
        biases = [None] * len(weights) if biases is None else biases
        if not weights or len(weights) != len(outs) or len(weights) != len(biases):
            raise ValueError(f"linear: {len(weights)} weights, {len(outs)} outputs, {len(biases)} biases")
        rows, cols = x.shape
        products: list[Product] = []
        for weight, out, bias in zip(weights, outs, biases, strict=True):
            if weight.cols != cols or tuple(out.shape) != (rows, weight.rows):
                raise ValueError(
                    f"linear: {rows} x {cols} times {weight.rows} x {weight.cols} is not {tuple(out.shape)}"
                )
            products.append(Product(self._packed(weight), out, bias, add))
        if not rows:
            return
        self._multiply(x, [product for product in products if product.weight.order is None])
        for product in products:
            if product.weight.order is not None:
                with self.scope():
                    self._multiply(self._ordered(x, product.weight.order), [product])

    def _ordered(self, x: Any, order: Any) -> DeviceArray:
        rows, cols = x.shape
        out = self.take(rows, cols)
        self._run("take_columns", (rows, -(-cols // ROW_BLOCK)), (x, order, out), K=cols, BLOCK=ROW_BLOCK)
        return out

    def _multiply(self, x: Any, products: Sequence[Product]) -> None:
        many = x.shape[0] > FEW_ROWS
        for product in products:
            if not many or product.weight.type == "F32":
                self._multiply_few(x, product)
        if not many:
            return
        for floats in (False, True):
            same = [p for p in products if p.weight.type != "F32" and (p.weight.type in FLOATS) == floats]
            if same:
                with self.scope():
                    halves = self._halves(x, not floats)
                    for product in same:
                        self._multiply_many(halves, product)

    def _multiply_few(self, x: Any, product: Product) -> None:
        weight, rows = product.weight, x.shape[0]
        at_once = min(rows, ROWS_AT_ONCE)
        grid = (-(-rows // at_once), -(-weight.rows // OUTS))
        found, rest = packing.views(weight), self._rest(product)
        size = {"N": weight.rows, "K": weight.cols, "ROWS": at_once, "OUTS": OUTS, **flags(product)}
        if weight.type in FLOATS:
            self._run("gemv_floats", grid, (x, found["values"], *rest, rows), warps=1, WIDTH=WIDTH, **size)
            return
        values = (x, *self._cells(found), *rest, rows)
        self._run("gemv_cells", grid, values, warps=1, GROUPS=GROUPS, **size, **constants(weight.type))

    def _halves(self, x: Any, cells: bool) -> tuple[DeviceArray, DeviceArray]:
        """x as f16 rows of whole chunks, and what each row is to be multiplied by afterwards."""
        rows, cols = x.shape
        unit = CHUNK if cells else FLOAT_STEP
        padded = -(-cols // unit) * unit
        out, back = self.take(rows, padded, dtype="f16"), self.take(rows)
        self._run("halve_rows", (rows,), (x, out, back), K=cols, PADDED=padded, CELLS=cells, BLOCK=ROW_BLOCK)
        return out, back

    def _multiply_many(self, halves: tuple[DeviceArray, DeviceArray], product: Product) -> None:
        weight, rows = product.weight, halves[0].shape[0]
        found, rest = packing.views(weight), self._rest(product)
        tall, wide, warps = TILES[rows > TILES[0][0]]
        grid = (-(-rows // tall), -(-weight.rows // wide))
        if weight.type in CELLS and CELLS[weight.type].value in LONG_VALUES:
            warps = 8
        size = {"N": weight.rows, "K": weight.cols, "ROWS": tall, "OUTS": wide, "warps": warps, **flags(product)}
        if weight.type in FLOATS:
            values = (*halves, found["values"], found["gain"], *rest, rows)
            self._run("gemm_floats", grid, values, PADDED=halves[0].shape[1], WIDTH=FLOAT_STEP, **size)
            return
        *planes, curve = self._cells(found)
        values = (*halves, *planes, found["gain"], curve, *rest, rows)
        self._run("gemm_cells", grid, values, **size, **constants(weight.type))

    def _cells(self, found: dict[str, DeviceArray]) -> tuple[Any, ...]:
        """The sections in the order of the kernels' arguments; what a type lacks is never read: its scales stand in."""
        names = ("words", "pairs", "bits", "scales", "parts", "lows", "low_parts")
        return *(found.get(name, found["scales"]) for name in names), _CURVE

    def _rest(self, product: Product) -> tuple[Any, Any]:
        return product.out if product.bias is None else product.bias, product.out

    def _packed(self, weight: Weight) -> Weight:
        """The matrix packed; one in file layout when it is first seen, and kept while its bytes are."""
        if weight.layout == LAYOUT:
            return weight
        key = id(weight.data)
        if key not in self._packed_before:
            gone = partial(self._packed_before.pop, key)
            self._packed_before[key] = (ref(weight.data, lambda _: gone(None)), self.pack(weight))
        return self._packed_before[key][1]


def constants(type_name: str) -> dict[str, Any]:
    """What the kernels need to know of a type in cells. Raises KeyError."""
    cells = CELLS[type_name]
    return {
        "BITS": cells.bits,
        "VALUE": cells.value,
        "BLOCK": cells.block,
        "PART": cells.part,
        "SCALE": cells.scale,
        "LOW": cells.low,
        "OFFSET": cells.offset,
        "FACTOR": cells.factor,
    }


def flags(product: Product) -> dict[str, Any]:
    """Whether a bias is added, and what the output held."""
    return {"BIAS": product.bias is not None, "ADD": product.add}
