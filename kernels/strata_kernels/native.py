"""The native CPU ops: the Ops protocol on libllmrun_cpu.

Checks every tensor, then records one flat op per call (several for a linear: quantise, multiply); a recorded step is
replayed by one C call on the library's own threads. Weights are repacked by `pack` into groups of 16 rows
(kernels/cpu/core/types.h). Repeatable by construction: an output element is accumulated in one fixed order whatever the
batch, the thread count or the step it is part of, with 16-bit activations (mode exact) and with 8-bit ones (mode fast).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from strata_kernels import binding
from strata_kernels.binding import TYPES, load
from strata_kernels.checks import apart, dense, extent, overlap, same_or_apart
from strata_kernels.ops import KvLayer, Rotary, Rows, Weight
from strata_kernels.recorder import NativeStep, Pointer, Pool, Recorder
from strata_kernels.workspace import Workspace, aligned

LAYOUT = "groups of 16"
_FLOATS = ("F32", "F16", "BF16")
_CACHE_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_ARENA_BYTES = 64 << 20
_HUGE_PAGE_BYTES = 2 << 20


# With 8-bit activations: outputs for each input from which a matrix counts as one that makes logits. Its x keeps 16
# bits: on SmolLM2 eight there make a fifth of the whole divergence from exact arithmetic, and the rest cost no bytes.
_FINE_RATIO = 16


@dataclass(frozen=True)
class _Product:
    weight: Weight
    out: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class _Quantized:
    x: Tensor
    fine: bool


class NativeOps:
    """Ops on the CPU's own instruction set.

    `threads`: workers, the caller included. `isa`: "generic", "avx2", "avx512", "neon"; None takes the fastest usable.
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
        self.activation_bits = activation_bits
        self._library = load(library_path)
        self._functions = self._library.functions
        self._pool = Pool(self._library, threads, isa)
        self._recorder = Recorder(self._pool)
        self._workspace = Workspace()
        self._arena: Tensor | None = None
        self._arena_used_bytes = 0
        self._lazily_packed: dict[tuple[int, str, int, int], tuple[Weight, Weight]] = {}
        self._blocks = torch.empty(0, dtype=torch.uint8)
        self._quantized: _Quantized | None = None  # what self._blocks holds while recording
        self._tables: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

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
        """The matrix in groups of 16 rows; at most 3 % more bytes (plus padding of the last group).

        The source is only read; a loader may drop its mapped pages afterwards (`drop_mapped`).
        Raises: TypeError, ValueError on a type, shape or byte count that does not fit.
        """
        if weight.layout == LAYOUT:
            return weight
        code = self._check_weight(weight)
        need_bytes = self._functions.llmrun_packed_bytes(code, weight.rows, weight.cols)
        out = self._arena_bytes(need_bytes)
        Recorder(self._pool).emit(binding.PACK, (weight.rows, weight.cols, code), (weight.data, out))
        return Weight(weight.type, weight.rows, weight.cols, out, LAYOUT)

    def _check_weight(self, weight: Weight) -> int:
        code = TYPES.get(weight.type)
        if code is None:
            raise ValueError(f"weight type {weight.type} is not one of {', '.join(TYPES)}")
        if weight.layout != "file":
            raise ValueError(f"a weight in layout {weight.layout!r} was not packed by these kernels")
        row_bytes = self._functions.llmrun_row_bytes(code, weight.cols)
        if row_bytes < 0 or weight.rows <= 0:
            raise ValueError(f"a {weight.type} matrix cannot have {weight.rows} rows of {weight.cols} columns")
        data = weight.data
        if not isinstance(data, Tensor) or data.dtype != torch.uint8:
            raise TypeError(f"weight data must be a u8 tensor, not {getattr(data, 'dtype', type(data).__name__)}")
        if data.device.type != "cpu" or not data.is_contiguous() or data.numel() != weight.rows * row_bytes:
            raise ValueError(
                f"a {weight.type} matrix of {weight.rows} x {weight.cols} has {weight.rows * row_bytes} bytes "
                f"in one piece on the CPU; got {data.numel()} with strides {tuple(data.stride())} on {data.device}"
            )
        return code

    def _arena_bytes(self, need_bytes: int) -> Tensor:
        rounded = -(-need_bytes // 64) * 64
        arena = self._arena
        if arena is None or self._arena_used_bytes + rounded > arena.numel():
            arena = self._arena = aligned(max(rounded, _ARENA_BYTES), _HUGE_PAGE_BYTES)
            self._arena_used_bytes = 0
            self._functions.llmrun_want_huge_pages(arena.data_ptr(), arena.numel())
        start = self._arena_used_bytes
        self._arena_used_bytes += rounded
        return arena[start : start + need_bytes]

    def _packed(self, weight: Weight) -> Weight:
        if weight.layout == LAYOUT:
            return weight
        key = (weight.data.data_ptr(), weight.type, weight.rows, weight.cols)
        found = self._lazily_packed.get(key)
        if found is None:  # the source is kept too: its address is the key
            found = self._lazily_packed[key] = (self.pack(weight), weight)
        return found[0]

    def drop_mapped(self, data: Tensor) -> int:
        """Forget the resident pages behind `data` if they map a file read-only. Returns the bytes released."""
        start, end = extent(data)
        return self._functions.llmrun_drop_mapped(start, end - start)

    # -- memory and steps ---------------------------------------------------------------------------------------------

    def take(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Workspace tensor, uninitialised, valid until the enclosing `scope` ends; its address never moves."""
        return self._workspace.take(shape, dtype)

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
        out: Sequence[Tensor],
        floats: Sequence[float] = (),
        flags: int = 0,
    ) -> None:
        self._recorder.emit(code, numbers, pointers, floats, flags)
        if self._quantized is not None and any(overlap(self._quantized.x, tensor) for tensor in out):
            self._quantized = None

    # -- ops ----------------------------------------------------------------------------------------------------------

    def embed(self, ids: Tensor, table: Weight, out: Tensor) -> None:
        """out[R, W] = rows `ids` [R] i32 of `table` (file layout), dequantised. Running raises IndexError: bad id."""
        code = self._check_weight(table)
        rows = dense(ids, "embed ids", (None,), torch.int32).shape[0]
        dense(out, "embed out", (rows, table.cols))
        if rows:
            self._emit(binding.EMBED, (rows, table.cols, code, table.rows), (ids, table.data, out), (out,))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """out = x * rsqrt(mean(x^2) + eps) * weight over the last dimension. out may be x."""
        width = x.shape[-1] if x.dim() else 0
        dense(x, "rms_norm x", (*x.shape[:-1], width))
        dense(weight, "rms_norm weight", (width,))
        dense(out, "rms_norm out", tuple(x.shape))
        same_or_apart(out, "rms_norm", x)
        if x.numel():
            self._emit(binding.RMS_NORM, (x.numel() // width, width), (x, weight, out), (out,), (eps,))

    def linear(
        self,
        x: Tensor,
        weights: Sequence[Weight],
        outs: Sequence[Tensor],
        biases: Sequence[Tensor | None] | None = None,
        add: bool = False,
    ) -> None:
        """outs[i][R, N_i] = x[R, K] @ weights[i].T (+ bias); with `add`, added to what outs[i] holds."""
        rows, cols = dense(x, "linear x", (None, None)).shape
        biases = [None] * len(weights) if biases is None else biases
        if not weights or len(weights) != len(outs) or len(weights) != len(biases):
            raise ValueError(f"linear: {len(weights)} weights, {len(outs)} outputs, {len(biases)} biases")
        for weight, out, bias in zip(weights, outs, biases, strict=True):
            if weight.cols != cols:
                raise ValueError(f"linear: x has {cols} columns, the weight {weight.cols}")
            apart(dense(out, "linear out", (rows, weight.rows)), "linear", x)
            if bias is not None:
                dense(bias, "linear bias", (weight.rows,))
        if not rows:
            return
        products = [
            _Product(self._packed(weight), out, bias) for weight, out, bias in zip(weights, outs, biases, strict=True)
        ]
        for fine in (False, True):
            same = [product for product in products if self.bits_for(product.weight) == (16 if fine else 8)]
            for i in range(0, len(same), binding.MAX_WEIGHTS):
                self._multiply(x, same[i : i + binding.MAX_WEIGHTS], add, fine)

    def bits_for(self, weight: Weight) -> int:
        """The activation bits that a product with `weight` is made with."""
        logits = weight.type not in _FLOATS and weight.rows >= _FINE_RATIO * weight.cols
        return 16 if logits else self.activation_bits

    def _quantize(self, x: Tensor, fine: bool) -> Tensor:
        found = self._quantized
        if found is not None and extent(found.x) == extent(x) and found.x.shape == x.shape and found.fine == fine:
            return self._blocks
        rows, cols = x.shape
        need_bytes = self._functions.llmrun_quantized_bytes(rows, cols, 16 if fine else 8)
        if self._blocks.numel() < need_bytes:
            self._blocks = aligned(need_bytes)  # recorded steps keep the smaller one they use
        self._recorder.emit(binding.QUANTIZE, (rows, cols), (x, self._blocks), flags=binding.FINE * fine)
        self._quantized = _Quantized(x, fine) if self._recorder.recording else None
        return self._blocks

    def _multiply(self, x: Tensor, products: Sequence[_Product], add: bool, fine: bool) -> None:
        quantized = any(product.weight.type not in _FLOATS for product in products)
        numbers: list[int] = [x.shape[0], x.shape[1], len(products)]
        pointers: list[Pointer] = [x, self._quantize(x, fine) if quantized else None]
        for product in products:
            numbers += [product.weight.rows, TYPES[product.weight.type]]
            pointers += [product.weight.data, product.out, product.bias]
        flags = binding.ADD_TO_OUT * add + binding.FINE * fine
        self._emit(binding.LINEAR, numbers, pointers, [product.out for product in products], flags=flags)

    def silu_mul(self, gate: Tensor, up: Tensor, out: Tensor) -> None:
        """out = silu(gate) * up. out may be gate or up."""
        self._elementwise(binding.SILU_MUL, "silu_mul", gate, up, out)

    def add(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """out = a + b. out may be a or b."""
        self._elementwise(binding.ADD, "add", a, b, out)

    def _elementwise(self, code: int, name: str, a: Tensor, b: Tensor, out: Tensor) -> None:
        shape = tuple(a.shape)
        for tensor, part in ((a, "first"), (b, "second"), (out, "out")):
            dense(tensor, f"{name} {part}", shape)
        same_or_apart(out, name, a, b)
        if a.numel():
            self._emit(code, (a.numel(),), (a, b, out), (out,))

    def rope(self, x: Tensor, rows: Rows, rotary: Rotary) -> None:
        """Rotate x [R, H, D] in place by each row's position."""
        count, heads, width = dense(x, "rope x", (None, None, None)).shape
        pairs = dense(rotary.inverse_frequencies, "rope inverse_frequencies", (None,)).shape[0]
        dense(rows.positions, "rope positions", (count,), torch.int32)
        if 2 * pairs > width:
            raise ValueError(f"rope: {pairs} pairs do not fit a head of {width}")
        if not x.numel() or not pairs:
            return
        cosine, sine = self._rope_table(rows.positions, rotary, count, pairs)
        self._emit(
            binding.ROPE, (count, heads, width, pairs), (x, cosine, sine), (x,), flags=int(rotary.adjacent)
        )  # fmt: skip

    def _rope_table(self, positions: Tensor, rotary: Rotary, count: int, pairs: int) -> tuple[Tensor, Tensor]:
        """cos and sin [R, pairs], made once a step for all layers that rotate alike."""
        frequencies = rotary.inverse_frequencies
        key = (positions.data_ptr(), count, frequencies.data_ptr(), pairs, hash(rotary.scale))
        found = self._tables.get(key)
        if found is None:
            found = (torch.empty(count, pairs), torch.empty(count, pairs))
            pointers = (positions, frequencies, *found)
            self._recorder.emit(binding.ROPE_TABLE, (count, pairs), pointers, (rotary.scale,))
            if self._recorder.recording:
                self._tables[key] = found
        return found

    def kv_store(self, k: Tensor, v: Tensor, cache: KvLayer, rows: Rows) -> None:
        """Write k, v [R, K, D] into the cache at rows.slots. Running raises IndexError on a slot outside the cache."""
        count, heads, width = dense(k, "kv_store k", (None, None, None)).shape
        dense(v, "kv_store v", (count, heads, width))
        code = _check_cache(cache, heads, width)
        dense(rows.slots, "kv_store slots", (count,), torch.int32)
        if count:
            pages, _, page_tokens, _ = cache.keys.shape
            numbers = (count, heads, width, page_tokens, pages, code)
            self._emit(binding.KV_STORE, numbers, (k, v, cache.keys, cache.values, rows.slots), ())

    def attention(self, q: Tensor, cache: KvLayer, rows: Rows, scale: float, out: Tensor) -> None:
        """out[R, H, D] = softmax(scale q k^T) v over positions 0..rows.positions[r] of each row's sequence.

        Running raises IndexError when a position, sequence or page number lies outside the cache.
        """
        count, heads, width = dense(q, "attention q", (None, None, None)).shape
        dense(out, "attention out", (count, heads, width))
        kv_heads = cache.keys.shape[1] if cache.keys.dim() == 4 else 0
        code = _check_cache(cache, kv_heads, width)
        if not kv_heads or heads % kv_heads:
            raise ValueError(f"attention: {heads} heads are no multiple of {kv_heads} kv heads")
        dense(rows.positions, "attention positions", (count,), torch.int32)
        dense(rows.sequences, "attention sequences", (count,), torch.int32)
        sequences, most_pages = dense(rows.pages, "attention pages", (None, None), torch.int32).shape
        apart(out, "attention", q, cache.keys, cache.values)
        if not count:
            return
        pages, _, page_tokens, _ = cache.keys.shape
        numbers = (count, heads, kv_heads, width, page_tokens, pages, sequences, most_pages, code)
        pointers = (q, cache.keys, cache.values, rows.positions, rows.sequences, rows.pages, out)
        self._emit(binding.ATTENTION, numbers, pointers, (out,), (scale,))

    def gather(self, x: Tensor, index: Tensor, out: Tensor) -> None:
        """out[n, W] = x[index[n], W]; index i32. Running raises IndexError on an index outside x."""
        source_rows, width = dense(x, "gather x", (None, None)).shape
        count = dense(index, "gather index", (None,), torch.int32).shape[0]
        apart(dense(out, "gather out", (count, width)), "gather", x)
        if count:
            self._emit(binding.GATHER, (count, width, source_rows), (x, index, out), (out,))

    # -- sampling helpers ---------------------------------------------------------------------------------------------

    def argmax(self, logits: Tensor, out: Tensor) -> None:
        """out[R] i32 = the lowest index of the maximum of each row of logits [R, V]."""
        rows, count = dense(logits, "argmax logits", (None, None)).shape
        dense(out, "argmax out", (rows,), torch.int32)
        if rows and count:
            self._emit(binding.ARGMAX, (rows, count), (logits, out), (out,))

    def log_softmax(self, logits: Tensor, out: Tensor) -> None:
        """out[R, V] = log softmax of each row. out may be logits."""
        rows, count = dense(logits, "log_softmax logits", (None, None)).shape
        dense(out, "log_softmax out", (rows, count))
        same_or_apart(out, "log_softmax", logits)
        if rows and count:
            self._emit(binding.LOG_SOFTMAX, (rows, count), (logits, out), (out,))

    def top_k(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Values f32 and ids i32 of the k largest of logits [V], descending, lowest id first among equals. Runs now."""
        count = dense(logits, "top_k logits", (None,)).shape[0]
        if k < 1:
            raise ValueError(f"top_k: k must be at least 1, not {k}")
        values = torch.empty(min(k, count))
        ids = torch.empty(min(k, count), dtype=torch.int32)
        if count:
            self._functions.llmrun_top_k(logits.data_ptr(), count, k, values.data_ptr(), ids.data_ptr())
        return values, ids


def _check_cache(cache: KvLayer, kv_heads: int, width: int) -> int:
    name = _CACHE_TYPES.get(cache.keys.dtype)
    if name is None:
        raise TypeError(f"cache: keys must be f16, bf16 or f32, not {cache.keys.dtype}")
    dense(cache.keys, "cache keys", (None, kv_heads, None, width), cache.keys.dtype)
    dense(cache.values, "cache values", tuple(cache.keys.shape), cache.keys.dtype)
    if cache.keys.numel() == 0:
        raise ValueError(f"cache: no room in shape {list(cache.keys.shape)}")
    return TYPES[name]
