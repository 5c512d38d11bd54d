"""Operations of models with several residual streams, hashed n-gram tables and block-sparse attention.

The part of the Ops protocol that only the qwen4_exp family calls; ops.py says what holds for all. Letters as there, and
S streams (in `past`: slots), G tokens of a block, J rows of the table that a token reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # ops.py takes StreamOps in
    from strata_kernels.ops import Array, KvLayer, Rotary, Rows, Weight


@dataclass(frozen=True)
class IndexLayer:
    """One layer's index keys, f32: `raw` [P, page_tokens, D] of each token, `blocks` [P, page_tokens / G, D].

    A block is G consecutive tokens of a sequence from a position that G divides; its key is made when its last token
    is stored. G divides page_tokens, so a block lies in one page.
    """

    raw: Array
    blocks: Array

    @property
    def page_tokens(self) -> int:
        """Tokens in a page."""
        return self.raw.shape[1]

    @property
    def block_tokens(self) -> int:
        """G."""
        return self.raw.shape[1] // self.blocks.shape[1]


@dataclass(frozen=True)
class IndexNorm:
    """How a block's key is made of the mean of its raw keys: RMS norm (weight [D]), then the rotation."""

    weight: Array
    eps: float
    rotary: Rotary


@dataclass(frozen=True)
class Ngrams:
    """Hashed n-grams. `multipliers` one for each place of an n-gram, the token itself first; below 2^63 / vocab.

    `sizes`, `offsets`: the J hash functions, those of pairs first, then those of triples and so on, equally many each.
    Token t of the vocabulary and its predecessors t1, t2: key of a pair (t m0) xor (t1 m1), of a triple that xor
    (t2 m2); row j = key mod sizes[j] + offsets[j]. A predecessor before the start of the sequence, or with an
    end-of-sequence id from it up to (not including) the token, counts as `eos`. All in 64-bit integers.
    """

    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    eos: int

    @property
    def history(self) -> int:
        """Previous tokens that matter."""
        return len(self.multipliers) - 1

    def check(self, vocab_size: int) -> None:
        """Raises ValueError unless the numbers fit each other, 64-bit keys and 32-bit row numbers."""
        heads, orders = len(self.sizes), self.history
        if orders < 1 or orders > 7 or not heads or heads % orders or len(self.offsets) != heads:
            raise ValueError(f"n-grams: {heads} sizes, {len(self.offsets)} offsets for {orders + 1} multipliers")
        if any(not 0 < m * vocab_size < 1 << 63 for m in self.multipliers):
            raise ValueError(f"n-grams: a multiplier times {vocab_size} tokens does not fit 63 bits")
        if any(
            size < 1 or offset < 0 or size + offset > 1 << 31
            for size, offset in zip(self.sizes, self.offsets, strict=True)
        ):
            raise ValueError("n-grams: a size or offset does not fit 31 bits")


@dataclass(frozen=True)
class Sparse:
    """Block-sparse attention: rows that see more than `blocks` complete blocks of G tokens attend to that many."""

    blocks: int
    block_tokens: int

    @property
    def dense_tokens(self) -> int:
        """Rows at positions below this attend to all they see: at most `blocks` complete blocks and a tail."""
        return (self.blocks + 1) * self.block_tokens - 1


class StreamOps(Protocol):
    """See the module's text. Arrays are contiguous f32 unless said otherwise; `out` may not alias an input."""

    def stream_norm(self, x: Array, weight: Array, eps: float, out: Array) -> None:
        """out = x * rsqrt(mean(x^2) + eps) * weight; x [R, S, W], weight [S, W], each stream normed alone. May be x."""
        ...

    def silu_scaled(self, x: Array, scale: float, out: Array) -> None:
        """out = silu(scale x), same shapes. out may be x."""
        ...

    def stream_mix(self, x: Array, gate: Array, out: Array) -> None:
        """out[R, W] = mean over the streams of sigmoid(gate) * x, [R, S, W] each."""
        ...

    def stream_add(self, y: Array, gate: Array, out: Array) -> None:
        """out[R, S, W] += 2 sigmoid(gate[R, S] / S) * y[R, W]."""
        ...

    def stream_gate(self, key: Array, query: Array, value: Array, out: Array) -> None:
        """out[R, S, W] = sigmoid(g) * value[R, W] with a = key . query / sqrt(W) per stream, g = sign(a) sqrt(|a|).

        |a| counts as at least 1e-6 under the root. key, query [R, S, W].
        """
        ...

    def ngram_rows(self, ids: Array, ngrams: Ngrams, past: Array, rows: Rows, out: Array) -> None:
        """out i32 [R, J] = the table's rows that each token reads. ids i32 [R].

        `past` i32 [slots, ring]: the tokens before the step's, that of position p at p % ring; takes up the new ones.
        Needs rows.states. Rows of earlier steps at this step's positions count as never run, if they were no more than
        ring - history.
        """
        ...

    def shard_rows(self, index: Array, shards: tuple[Weight, ...], out: Array) -> None:
        """out[n, W] = rows index i32 [n] of the `shards` one after the other, dequantised.

        All shards have one type and shape and the file's layout; they may be mapped files larger than memory: rows are
        announced to the system before the first is read.
        """
        ...

    def index_store(self, keys: Array, norm: IndexNorm, cache: IndexLayer, rows: Rows) -> None:
        """Store raw index keys [R, D] and make the keys of the blocks that these rows complete.

        A block's key = rope(norm(mean of its raw keys)) at the position of its first token.
        """
        ...

    def index_select(self, q: Array, cache: IndexLayer, rows: Rows, sparse: Sparse, chosen: Array, near: Array) -> None:
        """chosen i32 [R, blocks]: the best blocks of each row in ascending order; near i32 [R]: positions, see below.

        q [R, H, D], normed and rotated. Score of a complete block = sum over the heads of max(0, q . key) / sqrt(D),
        the lowest block first among equals. Rows below sparse.dense_tokens choose nothing: their near[r] is their
        position; all others' is 0, so that ordinary attention over these positions costs them nothing.
        """
        ...

    def sparse_attention(self, q: Array, chosen: Array, cache: KvLayer, rows: Rows, sparse: Sparse, out: Array) -> None:
        """out[r] of every row not below sparse.dense_tokens = softmax(q k^T / sqrt(D)) v over what it chose.

        That is its blocks and the tokens after its last complete block. q, out [R, H, D]; other rows keep what out
        holds.
        """
        ...
