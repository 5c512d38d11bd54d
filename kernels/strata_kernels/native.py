"""The native CPU ops: the Ops protocol on libllmrun_cpu.

Checks every array, then records one flat op per call (several for a linear: quantise, multiply); a recorded step is
replayed by one C call on the library's own threads. Weights are repacked by `pack` into groups of 16 rows
(kernels/cpu/core/types.h). Repeatable by construction: an output element is accumulated in one fixed order whatever the
batch, the thread count or the step it is part of, with 16-bit activations (mode exact) and with 8-bit ones (mode fast).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata_kernels import arrays, binding
from strata_kernels.arrays import Seen, see
from strata_kernels.binding import TYPES, load
from strata_kernels.checks import apart, dense, same_or_apart
from strata_kernels.grids import codebook
from strata_kernels.native_block import record_block_conv
from strata_kernels.native_delta import DeltaOps
from strata_kernels.native_experts import ExpertLayer, ExpertRecorder
from strata_kernels.native_streams import NativeStreamOps
from strata_kernels.native_towers import record_gelu, record_layer_norm, record_put_rows
from strata_kernels.ops import Array, Experts, KvLayer, Rotary, Rows, Weight, value_row_bytes
from strata_kernels.recorder import NativeStep, Pointer, Pool, Recorder
from strata_kernels.workspace import Workspace, aligned

LAYOUT = "groups of 16"
_FLOATS = binding.FLOAT_ACTIVATIONS
_CACHE_TYPES = {"f32": TYPES["F32"], "f16": TYPES["F16"], "bf16": TYPES["BF16"], "i8": binding.I8}
_VALUE_TYPES = {**_CACHE_TYPES, "u8": TYPES["Q4_1"]}
_ARENA_BYTES = 64 << 20
_HUGE_PAGE_BYTES = 2 << 20
_PIECE_BYTES = 8 << 20  # of a mapped file, packed before its pages are forgotten
_GROUP = 16  # rows of a packed group


# With 8-bit activations: outputs for each input from which a matrix counts as one that makes logits. Its x keeps 16
# bits: on SmolLM2 eight there make a fifth of the whole divergence from exact arithmetic, and the rest cost no bytes.
_FINE_RATIO = 16


@dataclass(frozen=True)
class _Product:
    weight: Weight
    out: Seen
    bias: Seen | None


@dataclass(frozen=True)
class _Quantized:
    x: Seen
    fine: bool


class NativeOps(DeltaOps, NativeStreamOps):
    """Ops on the CPU's own instruction set.

    `threads`: workers, the caller included. `isa`: a build of docs/kernels.md; None takes the fastest usable.
    `activation_bits`: 16 or 8, the precision of quantised activations.
    Raises: KernelsUnavailable when the library is missing, another ABI, or the build cannot run on this CPU.
    """

    name = "native"

    def __init__(
        self, threads: int = 1, isa: str | None = None, library_path: Path | None = None, activation_bits: int = 16
    ) -> None:
        """Loads the library and starts the threads."""
        if activation_bits not in (8, 16):
            raise ValueError(f"activation_bits must be 8 or 16, not {activation_bits}")
        super().__init__()
        self.activation_bits = activation_bits
        self._library = load(library_path)
        self._functions = self._library.functions
        self._pool = Pool(self._library, threads, isa)
        self._recorder = Recorder(self._pool)
        self._workspace = Workspace()
        self._arena: NDArray[np.uint8] | None = None
        self._arena_used_bytes = 0
        self._lazily_packed: dict[tuple[int, str, int, int], tuple[Weight, Weight]] = {}
        self._expert_layers: dict[int, ExpertLayer] = {}
        self._blocks = aligned(0)
        self._quantized: _Quantized | None = None  # what self._blocks holds while recording
        self._tables: dict[tuple[int, ...], tuple[Seen, Seen]] = {}

    @property
    def threads(self) -> int:
        """Workers, the caller included."""
        return self._pool.threads

    @property
    def isa(self) -> str:
        """Name of the instruction-set build in use."""
        return self._pool.build

    # -- weights ------------------------------------------------------------------------------------------------------

    def pack(self, weight: Weight) -> Weight:
        """The matrix in groups of 16 rows; at most 4 % more bytes (plus padding of the last group) for most types.

        TQ1_0 takes 22 % more, IQ3_S 25, IQ2_S 29, IQ3_XXS 41, IQ2_XS 43, IQ2_XXS 61, IQ1_M 89, IQ1_S 112: their codes
        are written out (kernels/cpu/core/types.h).

        The source is only read; see `pack_mapped` for one that lies in a mapped file.
        Raises: TypeError, ValueError on a type, shape or byte count that does not fit.
        """
        return self._pack(weight, False)

    def pack_mapped(self, weight: Weight) -> Weight:
        """Like `pack`, and forgets piece by piece the resident pages of the file that the source maps.

        So never more than a piece is resident twice. A source that is not a read-only mapping is left alone.
        """
        return self._pack(weight, True)

    def _pack(self, weight: Weight, forget: bool) -> Weight:
        if weight.layout == LAYOUT:
            return weight
        code, data = self._check_weight(weight)
        rows, cols, packed_bytes = weight.rows, weight.cols, self._functions.llmrun_packed_bytes
        out = self._arena_bytes(packed_bytes(code, rows, cols))
        row_bytes, group_bytes = (data.end - data.start) // rows, packed_bytes(code, _GROUP, cols)
        step = max(1, _PIECE_BYTES // (_GROUP * row_bytes)) * _GROUP if forget else rows
        for first in range(0, rows, step):
            count = min(step, rows - first)
            source = data.start + first * row_bytes
            target = arrays.address(out) + first // _GROUP * group_bytes
            self._pack_rows(weight.type, (count, cols, code), source, target)
            if forget:
                self._functions.llmrun_drop_mapped(source, count * row_bytes)
        if forget and step < rows:  # the pages that two pieces share
            self._functions.llmrun_drop_mapped(data.start, data.end - data.start)
        return replace(weight, data=out, layout=LAYOUT)

    def pack_pieces(self, weight_type: str, rows: int, cols: int, pieces: Iterable[Array]) -> Weight:
        """Like `pack` for a matrix whose rows come in runs, u8 [some rows, bytes of a row]: only one is held at a time.

        Raises what `pack` does; ValueError when the runs are not multiples of 16 rows (but the last) that make `rows`.
        """
        out, packed_bytes, first = None, self._functions.llmrun_packed_bytes, 0
        for piece in pieces:
            count = piece.shape[0]
            code, data = self._check_weight(Weight(weight_type, count, cols, piece))
            if out is None:
                out = self._arena_bytes(packed_bytes(code, rows, cols))
            if first % _GROUP or first + count > rows:
                raise ValueError(f"rows {first}..{first + count} of {rows} do not begin or end where rows are packed")
            target = arrays.address(out) + packed_bytes(code, first, cols) if first else arrays.address(out)
            self._pack_rows(weight_type, (count, cols, code), data.start, target)
            first += count
        if out is None or first != rows:
            raise ValueError(f"{first} of {rows} rows were there to pack")
        return Weight(weight_type, rows, cols, out, layout=LAYOUT)

    def _pack_rows(self, weight_type: str, numbers: tuple[int, int, int], source: int, target: int) -> None:
        Recorder(self._pool).emit(binding.PACK, numbers, (source, target, _codebook(weight_type)))

    def _check_weight(self, weight: Weight) -> tuple[int, Seen]:
        code = TYPES.get(weight.type)
        if code is None:
            raise ValueError(f"weight type {weight.type} is not one of {', '.join(TYPES)}")
        if weight.layout != "file":
            raise ValueError(f"a weight in layout {weight.layout!r} was not packed by these kernels")
        row_bytes = self._functions.llmrun_row_bytes(code, weight.cols)
        if row_bytes < 0 or weight.rows <= 0:
            raise ValueError(f"a {weight.type} matrix cannot have {weight.rows} rows of {weight.cols} columns")
        data = weight.data
        if not arrays.is_array(data) or arrays.type_name(data) != "u8":
            raise TypeError(f"weight data must be a u8 array, not {getattr(data, 'dtype', type(data).__name__)}")
        where, whole = arrays.place(data), arrays.in_one_piece(data)
        if where != "cpu" or not whole or data.nbytes != weight.rows * row_bytes:
            raise ValueError(
                f"a {weight.type} matrix of {weight.rows} x {weight.cols} has {weight.rows * row_bytes} bytes "
                f"in one piece on the CPU; got {data.nbytes} in {'one piece' if whole else 'pieces'} on {where}"
            )
        return code, see(data)

    def _arena_bytes(self, need_bytes: int) -> NDArray[np.uint8]:
        rounded = -(-need_bytes // 64) * 64
        if rounded >= _ARENA_BYTES // 4:  # of its own: the unused ends of arenas would add up
            own = aligned(rounded, _HUGE_PAGE_BYTES)
            self._functions.llmrun_want_huge_pages(arrays.address(own), own.size)
            return own[:need_bytes]
        arena = self._arena
        if arena is None or self._arena_used_bytes + rounded > arena.size:
            arena = self._arena = aligned(max(rounded, _ARENA_BYTES), _HUGE_PAGE_BYTES)
            self._arena_used_bytes = 0
            self._functions.llmrun_want_huge_pages(arrays.address(arena), arena.size)
        start = self._arena_used_bytes
        self._arena_used_bytes += rounded
        return arena[start : start + need_bytes]

    def _packed(self, weight: Weight) -> Weight:
        if weight.layout == LAYOUT:
            return weight
        key = (arrays.address(weight.data), weight.type, weight.rows, weight.cols)
        found = self._lazily_packed.get(key)
        if found is None:  # the source is kept too: its address is the key
            found = self._lazily_packed[key] = (self.pack(weight), weight)
        return found[0]

    def drop_mapped(self, data: Array) -> int:
        """Forget the resident pages behind `data` if they map a file read-only. Returns the bytes released."""
        seen = see(data)
        return self._functions.llmrun_drop_mapped(seen.start, seen.end - seen.start)

    # -- memory and steps ---------------------------------------------------------------------------------------------

    def take(self, *shape: int, dtype: str = "f32") -> NDArray[Any]:
        """Workspace array, uninitialised, valid until the enclosing `scope` ends; its address never moves."""
        return self._workspace.take(shape, dtype)

    zeros = staticmethod(arrays.zeros)
    host = staticmethod(arrays.host)
    constant = staticmethod(arrays.constant)

    def take_blocks(self, rows: int, cols: int, bits: int) -> NDArray[Any]:
        """Workspace for x [rows, cols] quantised to 8 or 16 bits."""
        return self._workspace.take((self._functions.llmrun_quantized_bytes(rows, cols, bits),), "u8")

    def scope(self) -> AbstractContextManager[None]:
        """Everything taken inside is given back at the end."""
        return self._workspace.scope()

    def begin(self) -> None:
        """Start recording. Raises RuntimeError when a step is being recorded already."""
        self._recorder.begin()
        self._quantized = None
        self._tables = {}

    def end(self) -> NativeStep:
        """Stop recording. Raises RuntimeError when nothing is being recorded."""
        self._quantized = None
        self._tables = {}
        return self._recorder.end()

    def abandon(self) -> None:
        """Forget a recording that failed half-way; `begin` works again."""
        self._quantized = None
        self._tables = {}
        self._recorder.abandon()

    def _emit(
        self,
        code: int,
        numbers: Sequence[int],
        pointers: Sequence[Pointer],
        out: Sequence[Seen],
        floats: Sequence[float] = (),
        flags: int = 0,
    ) -> None:
        self._recorder.emit(code, numbers, pointers, floats, flags)
        held = self._quantized
        if held is not None:
            for array in out:
                if held.x.overlaps(array):
                    self._quantized = None

    # -- ops ----------------------------------------------------------------------------------------------------------

    def embed(self, ids: Array, table: Weight, out: Array) -> None:
        """out[R, W] = rows `ids` [R] i32 of `table` (file layout), dequantised. Running raises IndexError: bad id."""
        code, data = self._check_weight(table)
        which = dense(ids, "embed ids", (None,), "i32")
        rows = which.count
        target = dense(out, "embed out", (rows, table.cols))
        if rows:
            pointers = (which, data, target, _codebook(table.type))
            self._emit(binding.EMBED, (rows, table.cols, code, table.rows), pointers, (target,))

    def rms_norm(self, x: Array, weight: Array, eps: float, out: Array) -> None:
        """out = x * rsqrt(mean(x^2) + eps) * weight over the last dimension. out may be x."""
        source = dense(x, "rms_norm x", (*x.shape[:-1], None))
        width = source.shape[-1]
        factors = dense(weight, "rms_norm weight", (width,))
        target = dense(out, "rms_norm out", source.shape)
        same_or_apart(target, "rms_norm", source)
        if source.count:
            self._emit(binding.RMS_NORM, (source.count // width, width), (source, factors, target), (target,), (eps,))

    def linear(
        self,
        x: Array,
        weights: Sequence[Weight],
        outs: Sequence[Array],
        biases: Sequence[Array | None] | None = None,
        add: bool = False,
    ) -> None:
        """outs[i][R, N_i] = x[R, K] @ weights[i].T (+ bias); with `add`, added to what outs[i] holds."""
        source = dense(x, "linear x", (None, None))
        biases = [None] * len(weights) if biases is None else biases
        if not weights or len(weights) != len(outs) or len(weights) != len(biases):
            raise ValueError(f"linear: {len(weights)} weights, {len(outs)} outputs, {len(biases)} biases")
        each = zip(weights, outs, biases, strict=True)
        products = [_checked_product(source, weight, out, bias) for weight, out, bias in each]
        if not source.shape[0]:
            return
        if any(product.weight.layout != LAYOUT for product in products):
            products = [replace(product, weight=self._packed(product.weight)) for product in products]
        plain = [product for product in products if product.weight.order is None]
        self._multiply_all(source, plain, add)
        for product in products:
            if product.weight.order is not None:
                self._multiply_ordered(source, product, add)

    def _multiply_all(self, x: Seen, products: Sequence[_Product], add: bool) -> None:
        for fine in (False, True):
            same = [product for product in products if self.bits_for(product.weight) == (16 if fine else 8)]
            for i in range(0, len(same), binding.MAX_WEIGHTS):
                self._multiply(x, same[i : i + binding.MAX_WEIGHTS], add, fine)

    def _multiply_ordered(self, x: Seen, product: _Product, add: bool) -> None:
        """A product with a matrix whose columns are out of order: x gets the same order first."""
        order = dense(product.weight.order, "linear order", (x.shape[1],), "i32")
        with self.scope():
            moved = see(self.take(*x.shape))
            self._emit(binding.COLUMNS, x.shape, (x, order, moved), (moved,))
            self._multiply_all(moved, [product], add)

    def bits_for(self, weight: Weight) -> int:
        """The activation bits that a product with `weight` is made with."""
        logits = weight.type not in _FLOATS and weight.rows >= _FINE_RATIO * weight.cols
        return 16 if logits else self.activation_bits

    def _quantize(self, x: Seen, fine: bool) -> Seen:
        found = self._quantized
        if found is not None and found.x.same_bytes(x) and found.x.shape == x.shape and found.fine == fine:
            return see(self._blocks)
        rows, cols = x.shape
        need_bytes = self._functions.llmrun_quantized_bytes(rows, cols, 16 if fine else 8)
        if self._blocks.size < need_bytes:
            self._blocks = aligned(need_bytes)  # recorded steps keep the smaller one they use
        blocks = see(self._blocks)
        self._recorder.emit(binding.QUANTIZE, (rows, cols), (x, blocks), flags=binding.FINE * fine)
        self._quantized = _Quantized(x, fine) if self._recorder.recording else None
        return blocks

    def _multiply(self, x: Seen, products: Sequence[_Product], add: bool, fine: bool) -> None:
        quantized = any(product.weight.type not in _FLOATS for product in products)
        numbers: list[int] = [x.shape[0], x.shape[1], len(products)]
        pointers: list[Pointer] = [x, self._quantize(x, fine) if quantized else None]
        for product in products:
            numbers += [product.weight.rows, TYPES[product.weight.type]]
            pointers += [see(product.weight.data), product.out, product.bias]
        flags = binding.ADD_TO_OUT * add + binding.FINE * fine
        self._emit(binding.LINEAR, numbers, pointers, [product.out for product in products], flags=flags)

    def silu_mul(self, gate: Array, up: Array, out: Array) -> None:
        """out = silu(gate) * up. out may be gate or up."""
        self._elementwise(binding.SILU_MUL, "silu_mul", gate, up, out)

    def experts(self, x: Array, logits: Array, experts: Experts, out: Array, add: bool = False) -> None:
        """out[R, W] (+)= the weighted sum of each row's experts."""
        ExpertRecorder(self, self._emit, self._expert_layers).record(x, logits, experts, out, add)

    def add(self, a: Array, b: Array, out: Array) -> None:
        """out = a + b. out may be a or b."""
        self._elementwise(binding.ADD, "add", a, b, out)

    def _elementwise(self, code: int, name: str, a: Array, b: Array, out: Array) -> None:
        shape = tuple(a.shape)
        first, second = dense(a, f"{name} first", shape), dense(b, f"{name} second", shape)
        target = dense(out, f"{name} out", shape)
        same_or_apart(target, name, first, second)
        if target.count:
            self._emit(code, (target.count,), (first, second, target), (target,))

    def rope(self, x: Array, rows: Rows, rotary: Rotary) -> None:
        """Rotate x [R, H, D] in place by each row's position."""
        turned = dense(x, "rope x", (None, None, None))
        count, heads, width = turned.shape
        frequencies = dense(rotary.inverse_frequencies, "rope inverse_frequencies", (None,))
        pairs = frequencies.count
        axes = None if rotary.axes is None or rows.axes is None else dense(rotary.axes, "rope axes", (pairs,), "i32")
        shape = (count,) if axes is None else (3, count)
        positions = dense(rotary.positions(rows), "rope positions", shape, "i32")
        if 2 * pairs > width:
            raise ValueError(f"rope: {pairs} pairs do not fit a head of {width}")
        if not turned.count or not pairs:
            return
        cosine, sine = self._rope_table(positions, frequencies, axes, rotary.scale)
        numbers = (count, heads, width, pairs)
        self._emit(binding.ROPE, numbers, (turned, cosine, sine), (turned,), flags=int(rotary.adjacent))

    def _rope_table(self, positions: Seen, frequencies: Seen, axes: Seen | None, scale: float) -> tuple[Seen, Seen]:
        """cos and sin [R, pairs], made once a step for all layers that rotate alike."""
        count, pairs = positions.shape[-1], frequencies.count
        key = (positions.start, count, frequencies.start, pairs, axes.start if axes else 0, hash(scale))
        found = self._tables.get(key)
        if found is None:
            found = (see(np.empty((count, pairs), np.float32)), see(np.empty((count, pairs), np.float32)))
            pointers = (positions, frequencies, *found, axes)
            self._recorder.emit(binding.ROPE_TABLE, (count, pairs), pointers, (scale,))
            if self._recorder.recording:
                self._tables[key] = found
        return found

    def kv_store(self, k: Array, v: Array, cache: KvLayer, rows: Rows) -> None:
        """Write k, v [R, K, D] into the cache at rows.slots. Running raises IndexError on a slot outside the cache."""
        new_keys = dense(k, "kv_store k", (None, None, None))
        count, heads, width = new_keys.shape
        new_values = dense(v, "kv_store v", new_keys.shape)
        keys, values = _check_cache(cache, heads, width)
        slots = dense(rows.slots, "kv_store slots", (count,), "i32")
        if count:
            pages, _, page_tokens, _ = keys.data.shape
            numbers = (count, heads, width, page_tokens, pages, keys.code, values.code)
            pointers = (new_keys, new_values, keys.data, values.data, slots, keys.scales, values.scales)
            self._emit(binding.KV_STORE, numbers, pointers, ())

    def attention(self, q: Array, cache: KvLayer, rows: Rows, scale: float, out: Array) -> None:
        """out[R, H, D] = softmax(scale q k^T) v over the visible positions of each row's sequence (ops.Rows).

        Running raises IndexError when a position, sequence or page number lies outside the cache.
        """
        queries = dense(q, "attention q", (None, None, None))
        count, heads, width = queries.shape
        target = dense(out, "attention out", queries.shape)
        kv_heads = cache.keys.shape[1] if len(cache.keys.shape) == 4 else 0
        keys, values = _check_cache(cache, kv_heads, width)
        if not kv_heads or heads % kv_heads:
            raise ValueError(f"attention: {heads} heads are no multiple of {kv_heads} kv heads")
        positions = dense(rows.last, "attention positions", (count,), "i32")
        firsts = None if rows.first is None else dense(rows.first, "attention first", (count,), "i32")
        sequences = dense(rows.sequences, "attention sequences", (count,), "i32")
        table = dense(rows.pages, "attention pages", (None, None), "i32")
        apart(target, "attention", queries, keys.data, values.data)
        if not count:
            return
        pages, _, page_tokens, _ = keys.data.shape
        numbers = (count, heads, kv_heads, width, page_tokens, pages, *table.shape, keys.code, values.code)
        where = (positions, sequences, table)
        pointers = (queries, keys.data, values.data, *where, target, keys.scales, values.scales, firsts)
        self._emit(binding.ATTENTION, numbers, pointers, (target,), (scale,))

    def gather(self, x: Array, index: Array, out: Array) -> None:
        """out[n, W] = x[index[n], W], f32 or i32; index i32. Running raises IndexError on an index outside x."""
        kind = "i32" if arrays.is_array(x) and arrays.type_name(x) == "i32" else "f32"
        source = dense(x, "gather x", (None, None), kind)
        which = dense(index, "gather index", (None,), "i32")
        count, (source_rows, width) = which.count, source.shape
        target = dense(out, "gather out", (count, width), kind)
        apart(target, "gather", source)
        if count:
            self._emit(binding.GATHER, (count, width, source_rows), (source, which, target), (target,))

    def put_rows(self, x: Array, index: Array, column: int, out: Array, add: bool = False) -> None:
        """out[r, W] (+)= x[index[r], column : column + W] where index[r] >= 0. Running raises IndexError."""
        record_put_rows(self._emit, x, index, column, out, add)

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float, out: Array) -> None:
        """out = (x - mean) * rsqrt(variance + eps) * weight + bias over the last dimension. out may be x."""
        record_layer_norm(self._emit, x, weight, bias, eps, out)

    def gelu(self, x: Array, out: Array, tanh: bool = False) -> None:
        """out = x * Phi(x), exact or by the tanh approximation. out may be x."""
        record_gelu(self._emit, x, out, tanh)

    def block_conv(self, x: Array, change: Array, base: Array, side: int, rows: Rows, out: Array) -> None:
        """out = convolution over the rows of each sequence with weights of their own. Raises ValueError: shapes."""
        record_block_conv(self._emit, x, change, base, side, rows, out)

    # -- sampling helpers ---------------------------------------------------------------------------------------------

    def argmax(self, logits: Array, out: Array, share: Array | None = None) -> None:
        """out[R] i32 = the lowest index of the maximum of each row of logits [R, V]; share[R] = its softmax."""
        source = dense(logits, "argmax logits", (None, None))
        target = dense(out, "argmax out", source.shape[:1], "i32")
        part = None if share is None else dense(share, "argmax share", source.shape[:1])
        if source.count:
            written = (target,) if part is None else (target, part)
            self._emit(binding.ARGMAX, source.shape, (source, target, part), written)

    def log_softmax(self, logits: Array, out: Array) -> None:
        """out[R, V] = log softmax of each row. out may be logits."""
        source = dense(logits, "log_softmax logits", (None, None))
        target = dense(out, "log_softmax out", source.shape)
        same_or_apart(target, "log_softmax", source)
        if source.count:
            self._emit(binding.LOG_SOFTMAX, source.shape, (source, target), (target,))

    def top_k(self, logits: Array, k: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Values f32 and ids i32 of the k largest of logits [V], descending, lowest id first among equals. Runs now."""
        source = dense(logits, "top_k logits", (None,))
        if k < 1:
            raise ValueError(f"top_k: k must be at least 1, not {k}")
        values, ids = np.empty(min(k, source.count), np.float32), np.empty(min(k, source.count), np.int32)
        if source.count:
            addresses = arrays.address(values), arrays.address(ids)
            self._functions.llmrun_top_k(source.start, source.count, k, *addresses)
        return values, ids


def _checked_product(x: Seen, weight: Weight, out: Array, bias: Array | None) -> _Product:
    rows, cols = x.shape
    if weight.cols != cols:
        raise ValueError(f"linear: x has {cols} columns, the weight {weight.cols}")
    target = dense(out, "linear out", (rows, weight.rows))
    apart(target, "linear", x)
    return _Product(weight, target, None if bias is None else dense(bias, "linear bias", (weight.rows,)))


@dataclass(frozen=True)
class _Cached:
    code: int  # of the type
    data: Seen
    scales: Seen | None


def _check_cache(cache: KvLayer, kv_heads: int, width: int) -> tuple[_Cached, _Cached]:
    """Keys, values."""
    keys = _checked_side("keys", cache.keys, cache.key_scales, (None, kv_heads, None, width))
    stored = value_row_bytes(width) if arrays.type_name(cache.values) == "u8" else width
    shape = (*keys.data.shape[:3], stored)
    return keys, _checked_side("values", cache.values, cache.value_scales, shape, _VALUE_TYPES)


def _checked_side(
    name: str, array: Array, scales: Array | None, shape: tuple[int | None, ...], types: dict[str, int] = _CACHE_TYPES
) -> _Cached:
    kind = arrays.type_name(array)
    code = types.get(kind)
    if code is None:
        wanted = ", ".join(types)
        raise TypeError(f"cache: {name} must be one of {wanted}, not {getattr(array, 'dtype', kind)}")
    data = dense(array, f"cache {name}", shape, kind)
    if data.count == 0:
        raise ValueError(f"cache: no room in shape {list(data.shape)}")
    if (kind == "i8") != (scales is not None):
        raise ValueError(f"cache: i8 {name}, and no others, have scales")
    return _Cached(code, data, None if scales is None else dense(scales, f"cache {name} scales", data.shape[:3]))


def _codebook(type_name: str) -> Seen | None:
    points = codebook(type_name)
    return None if points is None else see(points)
