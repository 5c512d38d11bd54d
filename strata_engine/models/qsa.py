"""Block-sparse attention: an index chooses which blocks of earlier tokens each row attends to, for all heads alike.

While a row sees few enough tokens it attends to all of them through the ordinary operation; which of the two ways a row
takes depends on its position alone, so neither chunking nor batch mates change its bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from strata_engine.memory.kv import KvMemory
from strata_engine.memory.sparse import IndexedLayer, IndexedMemory
from strata_engine.models.blocks import Linear, apply_linears
from strata_engine.models.config import ModelConfig
from strata_engine.models.exp_config import ExpConfig
from strata_engine.models.llama import attention_tensors
from strata_engine.models.names import RowSplit, Wanted
from strata_kernels.ops import Array, Ops, Rotary, Rows, Weight
from strata_kernels.ops_streams import IndexNorm, Sparse


@dataclass(frozen=True)
class SparseAttention:
    """Gated grouped-query attention with an index of `index_q` queries and one key a token."""

    q: Linear
    k: Linear
    v: Linear
    gate: Linear
    out: Linear
    q_norm: Array
    k_norm: Array
    index_q: Linear
    index_k: Linear
    index_q_norm: Array
    index_norm: IndexNorm
    sparse: Sparse
    head_width: int
    eps: float
    rotary: Rotary

    def mix(self, x: Array, cache: IndexedLayer, rows: Rows, ops: Ops) -> Array:
        """What `out` projects, f32 [R, H D], for x [R, W]; in the workspace of the enclosing scope."""
        count, width = x.shape[0], self.head_width
        linears = (self.q, self.k, self.v, self.gate, self.index_q, self.index_k)
        *parts, index_q, index_k = apply_linears(x, linears, ops)
        q, k, v, gate = (part.reshape(count, -1, width) for part in parts)
        for part, norm in ((q, self.q_norm), (k, self.k_norm)):
            ops.rms_norm(part, norm, self.eps, part)
            ops.rope(part, rows, self.rotary)
        ops.kv_store(k, v, cache.kv, rows)
        mixed = ops.take(*q.shape)
        chosen, near = self._choose(index_q, index_k, cache, rows, ops)
        ops.attention(q, cache.kv, replace(rows, positions=near), width**-0.5, mixed)
        ops.sparse_attention(q, chosen, cache.kv, rows, self.sparse, mixed)
        ops.sigmoid_mul(mixed, gate, mixed)
        return mixed.reshape(count, -1)

    def _choose(self, q: Array, k: Array, cache: IndexedLayer, rows: Rows, ops: Ops) -> tuple[Array, Array]:
        """Blocks of each row and the positions for ordinary attention (see `StreamOps.index_select`)."""
        count = q.shape[0]
        q = q.reshape(count, -1, k.shape[1])
        ops.rms_norm(q, self.index_q_norm, self.eps, q)
        ops.rope(q, rows, self.rotary)
        ops.index_store(k, self.index_norm, cache.index, rows)
        chosen, near = ops.take(count, self.sparse.blocks, dtype="i32"), ops.take(count, dtype="i32")
        ops.index_select(q, cache.index, rows, self.sparse, chosen, near)
        return chosen, near


def sparse_tensors(config: ModelConfig, exp: ExpConfig, layer: int, kind: str) -> list[Wanted]:
    """Attention and index of a layer. A checkpoint has queries and key of the index in one matrix."""
    attention = [want for want in attention_tensors(config, layer) if not want.name.endswith((".norm1", ".norm2"))]
    n, width = layer, config.width
    sizes = ((f"{n}.index_q", exp.index_heads * exp.index_width), (f"{n}.index_k", exp.index_width))
    if kind == "gguf":
        index = [Wanted(name, (rows, width), "matrix") for name, rows in sizes]
    else:
        both = (sum(rows for _, rows in sizes), width)
        index = [Wanted(f"{n}.index_qk", both, "matrix", split=RowSplit(1, sizes))]
    norms = [Wanted(f"{n}.{name}", (exp.index_width,), "vector") for name in ("index_q_norm", "index_k_norm")]
    return [*attention, *index, *norms]


def make_sparse(
    layer: int,
    config: ModelConfig,
    exp: ExpConfig,
    rotary: Rotary,
    weights: Mapping[str, Weight],
    vectors: Mapping[str, Array],
) -> SparseAttention:
    """The layer from the loaded tensors."""

    def linear(name: str) -> Linear:
        return Linear(weights[f"{layer}.{name}"])

    return SparseAttention(
        q=linear("q"),
        k=linear("k"),
        v=linear("v"),
        gate=linear("q_gate"),
        out=linear("o"),
        q_norm=vectors[f"{layer}.q_norm"],
        k_norm=vectors[f"{layer}.k_norm"],
        index_q=linear("index_q"),
        index_k=linear("index_k"),
        index_q_norm=vectors[f"{layer}.index_q_norm"],
        index_norm=IndexNorm(vectors[f"{layer}.index_k_norm"], config.norm_eps, rotary),
        sparse=exp.sparse,
        head_width=config.head_width,
        eps=config.norm_eps,
        rotary=rotary,
    )


def sparse_memory(config: ModelConfig, exp: ExpConfig) -> IndexedMemory:
    """What an attention layer keeps of each token."""
    return IndexedMemory(KvMemory(config.kv_heads, config.head_width), exp.index_width, exp.sparse.block_tokens)
