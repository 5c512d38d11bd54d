"""A mixture of experts: routing, few rows pair by pair, many rows sorted by expert; nothing is read by the host.

Few rows: route, gate and up of every (row, choice) pair, down with the sum over choices: three launches. Many: route,
sort, three products in tiles of an expert's rows, the sum over choices. Matrices are found by tables of addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from strata_kernels.gpu.arrays import DeviceArray
from strata_kernels.gpu.cells import CELLS, CURVE, FLOATS, GROUP, sections
from strata_kernels.gpu.core import FEW_ROWS
from strata_kernels.gpu.dense import ELEMENTS, power
from strata_kernels.gpu.linear import CHUNK, FLOAT_STEP, ROW_BLOCK, LinearOps, constants
from strata_kernels.gpu.packing import views
from strata_kernels.ops import Array, Experts, Weight

# tiles that compile without a spill on gfx1100, gfx1201 and sm_90
LINES = 2  # outputs of a one-warp program of gate and up
DOWN_LINES = 8  # (output, choice) pairs of one of down, at least
DOWN_WARPS = 4
GROUPS = 32  # of 32 columns at a time, at most
TILES = {16: 32, 32: 32, 64: 64}  # rows of a program of many rows -> outputs
SLOTS = 1024  # pairs looked at together where they are sorted
MOST_EXPERTS = 65535  # what routing can tell apart

_CURVE = np.array(CURVE, np.float32)
_SECTIONS = ("words", "pairs", "bits", "scales", "parts", "lows", "low_parts")
_NO_CELLS = {"BITS": 0, "VALUE": "", "BLOCK": 32, "PART": 0, "SCALE": "", "LOW": "none", "OFFSET": 0, "FACTOR": 1}


@dataclass(frozen=True)
class Projection:
    """One of a layer's three: addresses i64 [E] of its packed matrices, the order of their columns i32 [E, K]."""

    packed: tuple[Weight, ...]
    addresses: DeviceArray
    columns: DeviceArray | None

    @property
    def weight(self) -> Weight:
        """Any of them: type and shape are common."""
        return self.packed[0]

    @property
    def halved(self) -> bool:
        """Whether many rows may be multiplied in f16."""
        return self.weight.type != "F32"

    def constants(self) -> dict[str, Any]:
        """Shape, type and where the sections lie, as the kernels want them."""
        weight = self.weight
        parts, _ = sections(weight.type, weight.rows, weight.cols)
        floats = weight.type in FLOATS
        where = {"MARKS" if name == "bits" else name.upper(): 0 for name in _SECTIONS}
        for name, part in parts.items():
            if name in _SECTIONS:
                where["MARKS" if name == "bits" else name.upper()] = part.offset
        kind = FLOATS[weight.type] if floats else "cells"
        own = _NO_CELLS if floats else constants(weight.type)
        return {"N": weight.rows, "K": weight.cols, "KIND": kind, **own, **where}

    def gain(self) -> int:
        """Where the section that brings values into f16's range lies."""
        weight = self.weight
        return sections(weight.type, weight.rows, weight.cols)[0]["gain"].offset


@dataclass(frozen=True)
class ExpertLayer:
    """A layer's projections. `source` is held: its id is the key it is found by."""

    source: Experts
    gate: Projection
    up: Projection
    down: Projection

    @property
    def tallest(self) -> int:
        """Most rows of a tile (Q6_K in 64 spills on gfx1100)."""
        fine = any(_fine(part.weight.type) for part in (self.gate, self.up, self.down))
        return 32 if fine else max(TILES)

    @property
    def halved(self) -> bool:
        """Whether many rows may be multiplied in f16."""
        return self.gate.halved and self.up.halved and self.down.halved


@dataclass(frozen=True)
class Choices:
    """What the router chose: expert and share of every (row, choice) pair, [R, k]."""

    ids: DeviceArray
    weights: DeviceArray


@dataclass(frozen=True)
class Slots:
    """Pairs sorted by expert: pair of each slot, slot of each pair, the tiles; `rows` of a tile, `bound` of tiles."""

    order: DeviceArray
    place: DeviceArray
    tiles: DeviceArray
    rows: int
    bound: int


def _fine(type_name: str) -> bool:
    """Whether scales are of 16 columns: they take twice the registers of a tile."""
    cells = CELLS.get(type_name)
    return cells is not None and 16 in (cells.part, cells.block)


class ExpertOps(LinearOps):
    """One group of GpuOps."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._expert_layers: dict[int, ExpertLayer] = {}

    def experts(self, x: Array, logits: Array, experts: Experts, out: Array, add: bool = False) -> None:
        """As Ops. Up to FEW_ROWS rows, and F32 matrices: f32 sums, whose order the number of rows does not change.

        More: f16 products with f32 sums. Raises ValueError on shapes that do not fit.
        """
        rows, width = x.shape
        experts.check(width)
        count = len(experts.gate)
        if tuple(logits.shape) != (rows, count) or tuple(out.shape) != (rows, width) or count > MOST_EXPERTS:
            shapes = f"x {tuple(x.shape)}, logits {tuple(logits.shape)}, out {tuple(out.shape)}"
            raise ValueError(f"experts of unfitting shapes: {shapes} for {count} experts")
        if not rows:
            return
        layer = self._expert_layer(experts)
        with self.scope():
            choices = self._route(logits, experts)
            if rows <= FEW_ROWS or not layer.halved:
                self._experts_few(x, choices, layer, out, add)
            else:
                self._experts_many(x, choices, layer, out, add)

    def _route(self, logits: Array, experts: Experts) -> Choices:
        (rows, count), k = logits.shape, experts.top_k
        choices = Choices(self.take(rows, k, dtype="i32"), self.take(rows, k))
        sizes = {"EXPERTS": count, "TOP": k, "BLOCK": power(count, 1 << 16), "PICKS": power(k, 1 << 16)}
        values = (logits, choices.ids, choices.weights)
        self._run("route", (rows,), values, warps=1, RENORMALISE=experts.renormalise, **sizes)
        return choices

    # -- few rows -------------------------------------------------------------------------------------------------

    def _experts_few(self, x: Array, choices: Choices, layer: ExpertLayer, out: Array, add: bool) -> None:
        rows, top = choices.ids.shape
        gate, down = layer.gate, layer.down
        hidden = self.take(rows * top, gate.weight.rows)
        if layer.up.weight.type == gate.weight.type:
            self._hidden(x, choices, layer, gate, hidden, "both")
        else:
            self._hidden(x, choices, layer, gate, hidden, "gate")
            self._hidden(x, choices, layer, layer.up, hidden, "up")
        lines = max(_power(top), DOWN_LINES)
        size = {"TOP": top, "ADD": add, "CHOICES": _power(top), "LINES": lines, "GROUPS": _groups(down.weight)}
        columns = choices.ids if down.columns is None else down.columns
        values = (hidden, choices.ids, choices.weights, down.addresses, columns, _CURVE, out)
        grid = (rows, -(-down.weight.rows * _power(top) // lines))
        ordered = down.columns is not None
        self._run("expert_down", grid, values, warps=DOWN_WARPS, ORDERED=ordered, **size, **down.constants())

    def _hidden(
        self, x: Array, choices: Choices, layer: ExpertLayer, of: Projection, hidden: DeviceArray, mode: str
    ) -> None:
        columns = choices.ids if of.columns is None else of.columns
        size = {"TOP": choices.ids.shape[1], "LINES": LINES, "GROUPS": _groups(of.weight)}
        values = (x, choices.ids, layer.gate.addresses, layer.up.addresses, columns, _CURVE, hidden)
        grid = (hidden.shape[0], -(-of.weight.rows // LINES))
        ordered = of.columns is not None
        self._run("expert_hidden", grid, values, warps=1, MODE=mode, ORDERED=ordered, **size, **of.constants())

    # -- many rows ------------------------------------------------------------------------------------------------

    def _experts_many(self, x: Array, choices: Choices, layer: ExpertLayer, out: Array, add: bool) -> None:
        (rows, top), inner, width = choices.ids.shape, layer.gate.weight.rows, x.shape[1]
        slots, pairs = self._sort(choices, layer), rows * top
        gate, hidden, results = self.take(pairs, inner), self.take(pairs, inner), self.take(pairs, width)
        self._tiles(x, choices, slots, layer.gate, (gate, None), by_slot=False)
        self._tiles(x, choices, slots, layer.up, (hidden, gate), by_slot=False)
        self._tiles(hidden, choices, slots, layer.down, (results, None), by_slot=True)
        block = power(width, ELEMENTS)
        values = (results, slots.place, choices.weights, out)
        self._run("expert_combine", (rows, -(-width // block)), values, WIDTH=width, TOP=top, ADD=add, BLOCK=block)

    def _sort(self, choices: Choices, layer: ExpertLayer) -> Slots:
        pairs, count = choices.ids.count, len(layer.source.gate)
        tile = next((size for size in TILES if pairs <= size * count), layer.tallest)
        bound = min(count, pairs) + pairs // tile
        counts, tiles = self.take(count, dtype="i32"), self.take(1 + 3 * bound, dtype="i32")
        slots = Slots(self.take(pairs, dtype="i32"), self.take(pairs, dtype="i32"), tiles, tile, bound)
        block = power(pairs, SLOTS)
        self._run("expert_counts", (count,), (choices.ids, counts, pairs), BLOCK=block)
        values = (choices.ids, counts, slots.order, slots.place, tiles, pairs)
        sizes = {"EXPERTS": count, "ROWS": tile, "ALL": power(count, 1 << 16), "BLOCK": block}
        self._run("expert_plan", (count,), values, **sizes)
        return slots

    def _tiles(
        self,
        x: Array,
        choices: Choices,
        slots: Slots,
        of: Projection,
        ends: tuple[DeviceArray, DeviceArray | None],
        by_slot: bool,
    ) -> None:
        """`ends`: where results go, and what opens them."""
        weight, (out, gate), top = of.weight, ends, choices.ids.shape[1]
        with self.scope():
            if of.columns is not None:
                x, by_slot = self._taken(x, choices, slots, of, by_slot), True
            unit = FLOAT_STEP if weight.type in FLOATS else CHUNK
            padded = -(-weight.cols // unit) * unit
            halves, back = self.take(x.shape[0], padded, dtype="f16"), self.take(x.shape[0])
            cells = weight.type not in FLOATS
            sizes = {"K": weight.cols, "PADDED": padded, "CELLS": cells, "BLOCK": ROW_BLOCK}
            self._run("halve_rows", (x.shape[0],), (x, halves, back), **sizes)
            own = (of.addresses, _CURVE, out if gate is None else gate, out)
            self._run(
                "expert_tiles",
                (slots.bound, -(-weight.rows // TILES[slots.rows])),
                (halves, back, slots.order, slots.tiles, *own),
                PADDED=padded,
                TOP=top,
                BY_SLOT=by_slot,
                HIDDEN=gate is not None,
                ROWS=slots.rows,
                OUTS=TILES[slots.rows],
                GAIN=of.gain(),
                **of.constants(),
            )

    def _taken(self, x: Array, choices: Choices, slots: Slots, of: Projection, by_slot: bool) -> DeviceArray:
        """Rows of slots with their columns in the order of the slot's expert."""
        pairs, width = slots.order.count, of.weight.cols
        out, block = self.take(pairs, width), power(width, ELEMENTS)
        values = (x, choices.ids, slots.order, of.columns, out)
        sizes = {"WIDTH": width, "TOP": choices.ids.shape[1], "BY_SLOT": by_slot, "BLOCK": block}
        self._run("expert_take", (pairs, -(-width // block)), values, **sizes)
        return out

    # -- tables ---------------------------------------------------------------------------------------------------

    def _expert_layer(self, experts: Experts) -> ExpertLayer:
        found = self._expert_layers.get(id(experts))
        if found is None:
            parts = (self._projection(part) for part in (experts.gate, experts.up, experts.down))
            found = self._expert_layers[id(experts)] = ExpertLayer(experts, *parts)
        return found

    def _projection(self, weights: Sequence[Weight]) -> Projection:
        packed = tuple(self.pack(weight) for weight in weights)
        starts = [views(weight) and weight.data.address for weight in packed]  # type: ignore[attr-defined]
        return Projection(packed, self.constant(np.array(starts, np.int64)), self._expert_columns(packed))

    def _expert_columns(self, weights: Sequence[Weight]) -> DeviceArray | None:
        """The order of each expert's columns. Raises ValueError for one that is no order."""
        if all(weight.order is None for weight in weights):
            return None
        usual = np.arange(weights[0].cols, dtype=np.int32)
        orders = [usual if weight.order is None else np.asarray(weight.order, np.int32) for weight in weights]
        if any(order.shape != usual.shape or not np.array_equal(np.sort(order), usual) for order in orders):
            raise ValueError("experts: the order of an expert's columns does not name each of them once")
        return self.constant(np.stack(orders))


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _groups(weight: Weight) -> int:
    return min(GROUPS, _power(-(-weight.cols // GROUP)))
