"""The operations a model is made of: one protocol, its arrays and its numeric contract.

A model calls these on preallocated arrays; every op writes into `out` and allocates nothing. Two makers exist: plain
torch (reference/) and the native CPU library (native.py), which records the calls into a program and replays it.
Recording and running are the same calls: `Ops.begin()` starts a step, `Ops.run()` executes what was recorded (the
reference executes at once and `run` does nothing). A recorded program holds addresses, so every array passed in must
live as long as the program: workspace from `take`, weights, caches and batch buffers all do.

Dimension letters: R rows, B sequences, H heads, K kv heads (also in-features of a matrix), D head width, W model width,
N out-features, V vocab, P pages, S state slots, C channels, Hk Hv Dk Dv heads and widths of keys and values.

Numeric contract. Activations are f32 between ops. `exact` mode: the value of a row never depends on R, on its place in
the batch, on the thread count, or on whether it is run in a prefill chunk or as one decode row: every output element is
accumulated in one fixed order. Native products with quantised weights quantise the activations of each row in blocks of
32 and accumulate int32 inside a block, f32 across blocks: to 16 bits in `exact` mode (scale = max|x|/32512, f32), to
8 bits in `fast` mode (max|x|/127; logits still 16), which also is independent of batch mates but further from the exact
forward. Reference products are f32 throughout. Softmax, norms and rotary angles are f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from strata_kernels.ops_streams import StreamOps

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Array(Protocol):
    """Numbers in a device's memory, as its Ops make and take them: numpy's arrays on the CPU.

    Types by name: f32, f16, bf16, i32, u8, i8. Numpy has no bf16: there u16 stands for it. The engine slices and
    reshapes (views of the same memory), and assigns numbers; all else is for Ops.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int: ...

    def reshape(self, *shape: int) -> Any: ...

    def __getitem__(self, key: Any, /) -> Any: ...

    def __setitem__(self, key: Any, value: Any, /) -> None: ...


@dataclass(frozen=True)
class Weight:
    """A matrix as stored: [rows N, cols K] of the storage type `type`.

    `data`: u8 [N, bytes of a row] in file layout for GGUF types; for F32 F16 BF16 also u8, row-major little endian. It
    may be a view of a mapped file: never written to. `layout` "file", or a name that only the Ops which made it
    understands (see `Ops.pack`). `order` i32 [K]: column j of `data` is column order[j] of the matrix (GPTQ files that
    sort columns by group); None: as they are. Only `linear` takes such a matrix.
    """

    type: str  # name of a GGUF type that the Ops multiplies (registry.weight_types): "F16", "Q8_0", "IQ4_XS", ...
    rows: int
    cols: int
    data: Array
    layout: str = "file"
    order: Array | None = None


def value_row_bytes(width: int) -> int:
    """Bytes of a row of `width` values in blocks of 4 bits."""
    return -(-width // 32) * 20


@dataclass(frozen=True)
class KvLayer:
    """One layer's cache: keys and values, each [P, K, page_tokens, D] in f16, bf16, f32 or i8; they may differ.

    i8: `key_scales`, `value_scales` f32 [P, K, page_tokens]; an element is its code times the scale of its token and
    head. kv_store makes them: scale max|x|/127, code x * (127/max|x|) rounded to nearest even, all f32; scale and codes
    are 0 below LEAST_ACTIVATION, and the scale is not finite where a row is not.

    Values alone may be u8 [P, K, page_tokens, value_row_bytes(D)]: blocks of 32 elements as Q4_1 has them (scale
    d and least value m in f16, 16 bytes of codes, the low 4 bits first); an element is code * d + m. kv_store makes
    them: m = f16(min x), d = f16((max x - min x) * f32(1/15)), code (x - m) / d rounded to nearest even within
    0..15, 0 where d is 0. A last block that is not full repeats the row's last element. d is NaN where a block is not
    finite.

    Slot s = page * page_tokens + offset. Inside the [page_tokens, D] of a page and head the order of the elements is
    the Ops' own (native: keys_in_blocks in kernels.h). Pages may be copied or cleared whole; no Ops reads another's.
    """

    keys: Array
    values: Array
    key_scales: Array | None = None
    value_scales: Array | None = None

    @property
    def page_tokens(self) -> int:
        """Tokens in a page."""
        return self.keys.shape[2]


@dataclass(frozen=True)
class StateLayer:
    """One layer's recurrent memory: a slot for each sequence, f32.

    conv [S, past rows, C]: the inputs of `short_conv` before the next row; past rows = (kernel - 1) * dilation, and one
    more for each draft of a step: what is written over a draft's place reads nothing of it.
    state [S, Hv, Dk, Dv]: the matrices of `delta_rule`. pending [S, N, DeltaRule.pending_width]: what it needs of the
    rows of the newest step that were not certain; None: all rows always are. The order of the elements inside a slot is
    the Ops' own (native: native_delta.py); a slot may be copied whole while nothing is pending, to go on at the
    position it belongs to.
    """

    conv: Array
    state: Array
    pending: Array | None = None


@dataclass(frozen=True)
class Rows:
    """Where each row of a step sits. Fixed-address i32 buffers; contents change between replays, shapes do not.

    positions [R]: token position in its sequence; sequences [R]: row of `pages`; slots [R]: cache slot the row's key
    and value go to; pages [B, most pages]: page numbers of each sequence in order; states [B]: state slot of each
    sequence, needed by the recurrent ops only.
    axes [3, R]: positions in time, height and width for rotations that read several axes; None = all as `positions`.
    keep, fold [B]: only of a model with a recurrent state, and only where steps may hold drafts. keep: how many rows of
    each sequence in this step are certain, the first ones; all others are drafts: they see the rows before them, but
    the state moves on to the last certain row only. fold: how many drafts of the sequence's step before this one
    turned out to count; they come right before the first row, and the state takes them up first. None: all rows are
    certain and nothing is pending.
    A row attends to positions 0..positions[r] of its sequence (its own included: kv_store runs before attention).
    `attention` alone heeds two more: reach [R] is the last position a row sees instead of its own (rows of a block that
    look both ways), first [R] the first one instead of 0 (windows); 0 <= first <= last.
    The rows of one sequence stand together, in order of their positions. A row of position 0 finds zeros in place of
    its slot's past, whatever the slot holds.
    """

    positions: Array
    sequences: Array
    slots: Array
    pages: Array
    states: Array | None = None
    axes: Array | None = None
    reach: Array | None = None
    first: Array | None = None
    keep: Array | None = None
    fold: Array | None = None

    @property
    def last(self) -> Array:
        """The last position that each row attends to, [R]."""
        return self.positions if self.reach is None else self.reach


@dataclass(frozen=True)
class Rotary:
    """Rotary embedding: `inverse_frequencies` f32 [n], made by the model on the host; the first 2n of each head rotate.

    `adjacent`: pairs (2i, 2i+1) as GGUF llama files need; else (i, i+n). `scale` multiplies cos and sin (YaRN).
    `axes` i32 [n]: which of the three of Rows.axes each frequency turns by; None = by Rows.positions.
    """

    inverse_frequencies: Array
    adjacent: bool = False
    scale: float = 1.0
    axes: Array | None = None

    def positions(self, rows: Rows) -> Array:
        """What the rotation turns by: [R], or [3, R] when the frequencies choose among axes."""
        return rows.positions if self.axes is None or rows.axes is None else rows.axes


def same_order(first: Weight, second: Weight) -> bool:
    """Whether two matrices have their columns in the same order."""
    one, other = first.order, second.order
    if one is None or other is None or one is other:
        return one is other
    return one.shape == other.shape and bool((one == other).all())  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Experts:
    """One layer's mixture of experts: `gate`, `up` [I, W] and `down` [W, I] of each expert, in order of their ids.

    All matrices of one of the three have one shape and storage type. Of a row's softmax over all router logits the
    `top_k` largest count (lowest id first among equals); with `renormalise` they are divided by their sum.

    Columns may be in another order (`Weight.order`), of each expert its own; gate and up of an expert have the same.
    """

    gate: tuple[Weight, ...]
    up: tuple[Weight, ...]
    down: tuple[Weight, ...]
    top_k: int
    renormalise: bool

    def check(self, width: int) -> None:
        """Raises ValueError unless the matrices fit each other and rows of `width`."""
        if not 1 <= self.top_k <= len(self.gate):
            raise ValueError(f"experts: {self.top_k} of {len(self.gate)} experts cannot be chosen")
        inner = self.gate[0].rows
        for name, part, shape in (
            ("gate", self.gate, (inner, width)),
            ("up", self.up, (inner, width)),
            ("down", self.down, (width, inner)),
        ):
            if len(part) != len(self.gate) or any((w.rows, w.cols) != shape for w in part):
                raise ValueError(f"experts: {name} is not {len(self.gate)} matrices of {shape[0]} x {shape[1]}")
            if len({(weight.type, weight.layout) for weight in part}) > 1:
                raise ValueError(f"experts: the {name} matrices differ in their storage type or layout")
        if not all(same_order(*pair) for pair in zip(self.gate, self.up, strict=True)):
            raise ValueError("experts: gate and up of an expert have their columns in different orders")


@dataclass(frozen=True)
class DeltaRule:
    """The numbers of a gated delta rule (arXiv 2412.06464). `decay` f32 [Hv] = -exp(A_log); `dt_bias` f32 [Hv].

    `tiled`: value head h works with key head h % Hk, as GGUF files order them; else h // (Hv / Hk), as checkpoints do.
    """

    decay: Array
    dt_bias: Array
    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    tiled: bool = False

    @property
    def channels(self) -> int:
        """Elements of a row's q, k and v together."""
        return 2 * self.key_heads * self.key_width + self.value_heads * self.value_width

    @property
    def pending_width(self) -> int:
        """Elements of a row that waits: keys, values, a and b."""
        return self.key_heads * self.key_width + self.value_heads * (self.value_width + 2)

    def check(self) -> None:
        """Raises ValueError unless the heads fit each other and the vectors."""
        if min(self.key_heads, self.key_width, self.value_width) < 1 or self.value_heads % self.key_heads:
            raise ValueError(f"delta_rule: {self.value_heads} value heads over {self.key_heads} key heads cannot be")
        for name, vector in (("decay", self.decay), ("dt_bias", self.dt_bias)):
            if tuple(vector.shape) != (self.value_heads,):
                raise ValueError(f"delta_rule: {name} has shape {tuple(vector.shape)}, not ({self.value_heads},)")


class Ops(StreamOps, Protocol):
    """Operations on one device. Unless said otherwise arrays are contiguous f32 and `out` may not alias an input."""

    name: str  # "reference" | "native"

    def pack(self, weight: Weight) -> Weight:
        """The same matrix in the layout this Ops multiplies fastest; may be `weight` itself. For `linear` only."""
        ...

    def take(self, *shape: int, dtype: str = "f32") -> Array:
        """Workspace array, uninitialised, valid until the enclosing `scope` ends; its address never moves."""
        ...

    def zeros(self, *shape: int, dtype: str = "f32") -> Array:
        """Zeros that live as long as they are referred to: caches, batch buffers, logits."""
        ...

    def host(self, array: Array, read: bool = False) -> NDArray[Any]:
        """An array of `zeros` as numpy: written before a step runs or, with `read`, read after it; never both.

        On the CPU the array itself.
        """
        ...

    def constant(self, values: NDArray[Any]) -> Array:
        """The same numbers where ops read them; on the CPU the same memory when it is in one piece. Never written."""
        ...

    def scope(self) -> AbstractContextManager[None]:
        """Everything taken inside is given back at the end (stack order)."""
        ...

    def begin(self) -> None:
        """Start recording a step."""
        ...

    def end(self) -> Step:
        """Stop recording; the returned Step runs it, now and again."""
        ...

    def embed(self, ids: Array, table: Weight, out: Array) -> None:
        """out[R, W] = rows `ids` [R] i32 of `table`, dequantised."""
        ...

    def rms_norm(self, x: Array, weight: Array, eps: float, out: Array) -> None:
        """out = x * rsqrt(mean(x^2)+eps) * weight over the last dimension. x [R, W] or [R, H, D]. out may be x."""
        ...

    def linear(
        self,
        x: Array,
        weights: Sequence[Weight],
        outs: Sequence[Array],
        biases: Sequence[Array | None] | None = None,
        add: bool = False,
    ) -> None:
        """outs[i][R, N_i] = x[R, K] @ weights[i].T (+ bias); with `add`, added to what outs[i] holds (residual)."""
        ...

    def silu_mul(self, gate: Array, up: Array, out: Array) -> None:
        """out = silu(gate) * up, [R, I] each. out may be gate or up."""
        ...

    def experts(self, x: Array, logits: Array, experts: Experts, out: Array, add: bool = False) -> None:
        """out[R, W] = sum over the chosen experts of p * down(silu(gate x) * up x), the most probable first.

        x [R, W]; logits [R, E] of the router. With `add`, added to what out holds (residual). The sum of a row is taken
        in the order of its own choice, so batch mates do not matter.
        """
        ...

    def add(self, a: Array, b: Array, out: Array) -> None:
        """out = a + b. out may be a or b."""
        ...

    def rope(self, x: Array, rows: Rows, rotary: Rotary) -> None:
        """Rotate x [R, H, D] in place by each row's position."""
        ...

    def kv_store(self, k: Array, v: Array, cache: KvLayer, rows: Rows) -> None:
        """Write k, v [R, K, D] into the cache at rows.slots, converted to the cache's type."""
        ...

    def attention(self, q: Array, cache: KvLayer, rows: Rows, scale: float, out: Array) -> None:
        """out[R, H, D] = softmax(scale q k^T) v over each row's visible positions.

        H/K consecutive heads share a kv head.
        """
        ...

    def short_conv(
        self,
        x: Array,
        weight: Array,
        past: Array,
        rows: Rows,
        out: Array,
        silu: bool = True,
        dilation: int = 1,
    ) -> None:
        """out[R, C] = depthwise causal convolution over each sequence's own rows, then silu.

        out[t] = sum over j of weight[C, k][:, j] * x[t - (k - 1 - j) * dilation], f32. `past` [S, ring, C] holds the
        inputs before the step's rows and takes up the new ones, that of position p in row p % ring. Rows of earlier
        steps at this step's positions count as never run, if they were no more than ring - (k - 1) * dilation.
        """
        ...

    def delta_rule(
        self,
        qkv: Array,
        a: Array,
        b: Array,
        delta: DeltaRule,
        state: Array,
        rows: Rows,
        out: Array,
        pending: Array | None = None,
    ) -> None:
        """out[R, Hv, Dv]: the gated delta rule, row after row of each sequence; updates `state` [S, Hv, Dk, Dv].

        qkv [R, q (Hk Dk) | k (Hk Dk) | v (Hv Dv)]; a, b [R, Hv]. Per value head, all f32: q, k are divided by
        sqrt(sum of squares + 1e-6) and q by sqrt(Dk); g = decay * softplus(a + dt_bias), beta = sigmoid(b);
        M <- e^g M; d = beta (v - M^T k); M <- M + k d^T; out = M^T q.
        Always in the order of rows, so that any chunking of a prompt gives the same bits. `pending` [S, N, P] of a
        StateLayer, needed with rows.keep: takes up the inputs of the rows that are not certain and gives back the
        first rows.fold of those of the step before. The same bits as if the certain rows alone had ever run.
        """
        ...

    def gated_norm(self, x: Array, weight: Array, gate: Array, eps: float, activation: str, out: Array) -> None:
        """out = x * rsqrt(mean(x^2) + eps) * weight * act(gate) over the last dimension; "silu" or "sigmoid".

        x, gate, out [R, H, D]; weight [D]. out may be x.
        """
        ...

    def sigmoid_mul(self, x: Array, gate: Array, out: Array) -> None:
        """out = x * sigmoid(gate), same shapes. out may be x or gate."""
        ...

    def add_scaled(self, x: Array, gate: Array, out: Array) -> None:
        """out[R, W] += sigmoid(gate[R, 1]) * x[R, W]."""
        ...

    def gather(self, x: Array, index: Array, out: Array) -> None:
        """out[n, W] = x[index[n], W], both f32 or both i32; index i32."""
        ...

    def argmax(self, logits: Array, out: Array, share: Array | None = None) -> None:
        """out[R] i32 = the lowest index of the maximum of each row of logits [R, V]; share[R] = its softmax."""
        ...

    def put_rows(self, x: Array, index: Array, column: int, out: Array, add: bool = False) -> None:
        """out[r, W] = x[index[r], column : column + W] where index[r] >= 0; other rows stay. With `add`, added.

        x [N, C]; index i32 [R]; `column` and the width of `out` lie inside C.
        """
        ...

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float, out: Array) -> None:
        """out = (x - mean) * rsqrt(variance + eps) * weight + bias over the last dimension. x [R, W]. out may be x."""
        ...

    def gelu(self, x: Array, out: Array, tanh: bool = False) -> None:
        """out = x * Phi(x), by the error function or by its tanh approximation. Same shapes. out may be x."""
        ...

    def block_conv(self, x: Array, change: Array, base: Array, side: int, rows: Rows, out: Array) -> None:
        """out[r, c] = sum over t of (base[side, t, c] + change[r, side, t, c's group]) * x[r - t, c], in order of t.

        x, out [R, W]; base [2, taps, W]; change [R, 2 * taps * groups], channels in equal groups. Rows before the first
        of the same sequence count as zero.
        """
        ...


class Step(Protocol):
    """A recorded step. Replays as often as wanted, reading the current contents of its buffers."""

    def run(self) -> None:
        """Execute all recorded ops in order."""
        ...
