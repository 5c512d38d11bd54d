"""Records a mixture-of-experts layer for the native library: route, sort rows by expert, multiply, combine.

Everything that depends on what the router chose happens inside the library (kernels/cpu/isa/experts.cpp); recorded is
only how much there can be. Matrices stay packed where `pack` put them: the library gets their addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata_kernels import binding
from strata_kernels.arrays import Seen, address, see
from strata_kernels.binding import TYPES
from strata_kernels.checks import apart, dense
from strata_kernels.ops import Array, Experts, Weight

if TYPE_CHECKING:
    from strata_kernels.native import NativeOps

_FLOATS = binding.FLOAT_ACTIVATIONS
Emit = Callable[..., None]  # NativeOps._emit


@dataclass(frozen=True)
class _Table:
    """Addresses of the packed matrices of one projection, and what they point to."""

    addresses: ctypes.Array[ctypes.c_void_p]
    packed: tuple[Weight, ...]
    columns: Seen | None  # i32 [E, cols]: their order, of each expert its own; None: as they are

    @property
    def weight(self) -> Weight:
        """Any of them: type, rows and cols are common."""
        return self.packed[0]


@dataclass(frozen=True)
class ExpertLayer:
    """A layer's address tables."""

    source: Experts  # held: its id is the key it is found by
    gate: _Table
    up: _Table
    down: _Table


@dataclass(frozen=True)
class _Slots:
    """Workspace of a layer: (row, choice) pairs as chosen and as sorted, see core/experts.h."""

    ids: Seen
    weights: Seen
    order: Seen
    place: Seen
    plan: Seen


class ExpertRecorder:
    """Emits the ops of expert layers. Made for one call: kept, it and its NativeOps would hold each other alive."""

    def __init__(self, ops: NativeOps, emit: Emit, layers: dict[int, ExpertLayer]) -> None:
        """`ops` packs and lends workspace, `emit` records; `layers`: made by earlier calls, steps point into them."""
        self._ops = ops
        self._emit = emit
        self._layers = layers

    def record(self, x: Array, logits: Array, experts: Experts, out: Array, add: bool) -> None:
        """See `Ops.experts`."""
        source = dense(x, "experts x", (None, None))
        rows, width = source.shape
        scores = dense(logits, "experts logits", (rows, len(experts.gate)))
        target = dense(out, "experts out", (rows, width))
        apart(target, "experts", source, scores)
        experts.check(width)
        if rows:
            with self._ops.scope():
                self._record(source, scores, self._layer(experts), target, add)

    def _take(self, *shape: int, dtype: str = "f32") -> Seen:
        return see(self._ops.take(*shape, dtype=dtype))

    def _record(self, x: Seen, logits: Seen, layer: ExpertLayer, out: Seen, add: bool) -> None:
        (rows, width), inner, k = x.shape, layer.gate.weight.rows, layer.source.top_k
        count, take = len(layer.source.gate), self._take
        slots = self._route(logits, layer.source)
        # the gathered rows are not needed any more when the experts' results come
        gathered, gate, up = take(rows * k, width), take(rows * k, inner), take(rows * k, inner)
        source, blocks, flags = self._input(x, slots, k, gathered, (layer.gate, layer.up))
        self._multiply(source, blocks, slots.plan, count, ((layer.gate, gate), (layer.up, up)), flags)
        blocks, flags = self._blocks(rows * k, (layer.down.weight,))
        hidden, columns = gate if layer.down.columns is None else up, layer.down.columns
        outs = (gate, up) if blocks is None else (gate, up, blocks)
        pointers = (gate, up, slots.plan, blocks, columns)
        self._emit(binding.EXPERT_HIDDEN, (rows * k, inner), pointers, outs, flags=flags)
        self._multiply(hidden, blocks, slots.plan, count, ((layer.down, gathered),), flags)
        pointers = (gathered, slots.place, slots.weights, out)
        self._emit(binding.EXPERT_COMBINE, (rows, k, width), pointers, (out,), flags=binding.ADD_TO_OUT * add)

    def _route(self, logits: Seen, experts: Experts) -> _Slots:
        (rows, count), k, take = logits.shape, experts.top_k, self._take
        ids, order, place = (take(rows, k, dtype="i32") for _ in range(3))
        slots = _Slots(ids, take(rows, k), order, place, take(1 + 3 * count, dtype="i32"))
        flags = binding.RENORMALISE * experts.renormalise
        made = (slots.ids, slots.weights)
        self._emit(binding.EXPERT_ROUTE, (rows, count, k), (logits, *made), made, flags=flags)
        made = (slots.order, slots.place, slots.plan)
        self._emit(binding.EXPERT_PLAN, (rows, k, count), (slots.ids, *made), made)
        return slots

    def _input(
        self, x: Seen, slots: _Slots, k: int, gathered: Seen, tables: tuple[_Table, _Table]
    ) -> tuple[Seen, Seen | None, int]:
        """What gate and up multiply: rows sorted by expert, or x itself where all slots share its only row."""
        rows, width = x.shape
        columns, shared = tables[0].columns, rows == 1 and tables[0].columns is None
        blocks, flags = self._blocks(1 if shared else rows * k, [table.weight for table in tables])
        if not shared:
            pointers = (x, slots.order, slots.plan, gathered, blocks, columns)
            outs = (gathered,) if blocks is None else (gathered, blocks)
            self._emit(binding.EXPERT_INPUT, (rows, k, width), pointers, outs, flags=flags)
            return gathered, blocks, flags
        if blocks is not None:
            self._emit(binding.QUANTIZE, (1, width), (x, blocks), (blocks,), flags=flags)
        return x, blocks, flags

    def _blocks(self, rows: int, weights: Sequence[Weight]) -> tuple[Seen | None, int]:
        """Room for quantised rows and the flag of their precision; none for float weights."""
        quantised = [weight for weight in weights if weight.type not in _FLOATS]
        if not quantised:
            return None, 0
        bits = max(self._ops.bits_for(weight) for weight in quantised)
        return see(self._ops.take_blocks(rows, quantised[0].cols, bits)), binding.FINE * (bits == 16)

    def _multiply(
        self,
        x: Seen,
        blocks: Seen | None,
        plan: Seen,
        count: int,
        products: Sequence[tuple[_Table, Seen]],
        flags: int,
    ) -> None:
        outs = [out for _, out in products]
        slots, cols = outs[0].shape[0], x.shape[1]
        numbers = [slots, cols, count, len(products), 0, 0, 0, 0, 0, int(x.shape[0] != slots)]
        pointers: list[Seen | int | None] = [x, blocks, plan]
        for i, (table, out) in enumerate(products):
            numbers[4 + 2 * i : 6 + 2 * i] = [table.weight.rows, TYPES[table.weight.type]]
            pointers += [ctypes.addressof(table.addresses), out]
        self._emit(binding.EXPERT_LINEAR, numbers, pointers, outs, flags=flags)

    def _layer(self, experts: Experts) -> ExpertLayer:
        found = self._layers.get(id(experts))
        if found is None:
            tables = (self._table(part) for part in (experts.gate, experts.up, experts.down))
            found = self._layers[id(experts)] = ExpertLayer(experts, *tables)
        return found

    def _table(self, weights: Sequence[Weight]) -> _Table:
        packed = tuple(self._ops.pack(weight) for weight in weights)
        addresses = (ctypes.c_void_p * len(packed))(*(address(weight.data) for weight in packed))
        return _Table(addresses, packed, _columns(packed))


def _columns(weights: Sequence[Weight]) -> Seen | None:
    if all(weight.order is None for weight in weights):
        return None
    usual = np.arange(weights[0].cols, dtype=np.int32)
    orders = [usual if weight.order is None else np.asarray(weight.order, np.int32) for weight in weights]
    if any(order.shape != usual.shape or not np.array_equal(np.sort(order), usual) for order in orders):
        raise ValueError("experts: the order of an expert's columns does not name each of them once")
    return see(np.stack(orders))
