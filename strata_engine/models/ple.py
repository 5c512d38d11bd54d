"""Hashed n-gram embeddings that a layer adds to its residual streams (per-layer embedding).

The table is far larger than memory and stays in its file: a token reads a few rows of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strata_engine.formats.base import WeightSource
from strata_engine.memory.kv import LayerMemory
from strata_engine.memory.sparse import NgramLayer, NgramMemory
from strata_engine.models.blocks import Linear, apply_linears
from strata_engine.models.exp_config import TableConfig
from strata_engine.models.names import Wanted
from strata_kernels.ops import Array, Ops, Rows, Weight
from strata_kernels.ops_streams import Ngrams

_GGUF_TABLE = "per_layer_token_embd.weight"


@dataclass(frozen=True)
class NgramEmbedding:
    """One table and what makes the streams' share of it. Norms [S, W]; `conv` f32 [S W, kernel]."""

    ngrams: Ngrams
    shards: tuple[Weight, ...]
    key: Linear
    value: Linear
    norm_key: Array
    norm_query: Array
    norm_conv: Array
    conv: Array
    dilation: int
    eps: float

    def add_to(self, x: Array, ids: Array, cache: NgramLayer, rows: Rows, ops: Ops) -> None:
        """x [R, S, W] += the gated values of each row's n-grams and their convolution over the sequence."""
        count, streams, width = x.shape
        with ops.scope():
            key, value = apply_linears(self._look_up(ids, cache, rows, ops), (self.key, self.value), ops)
            key = key.reshape(count, streams, width)
            ops.stream_norm(key, self.norm_key, self.eps, key)
            query, gated = ops.take(count, streams, width), ops.take(count, streams, width)
            ops.stream_norm(x, self.norm_query, self.eps, query)
            ops.stream_gate(key, query, value, gated)
            ops.stream_norm(gated, self.norm_conv, self.eps, query)
            mixed = key.reshape(count, -1)  # its place is free again
            ops.short_conv(query.reshape(count, -1), self.conv, cache.conv, rows, mixed, dilation=self.dilation)
            ops.add(x, gated, x)
            ops.add(x.reshape(count, -1), mixed, x.reshape(count, -1))

    def _look_up(self, ids: Array, cache: NgramLayer, rows: Rows, ops: Ops) -> Array:
        """The rows of the table that each token reads, one after the other: f32 [R, J w]."""
        count, heads = ids.shape[0], len(self.ngrams.sizes)
        index = ops.take(count, heads, dtype="i32")
        ops.ngram_rows(ids, self.ngrams, cache.ids, rows, index)
        found = ops.take(count * heads, self.shards[0].cols)
        ops.shard_rows(index.reshape(-1), self.shards, found)
        return found.reshape(count, -1)


def table_tensors(layer: int, table: TableConfig, streams: int, width: int, source: WeightSource) -> list[Wanted]:
    """The tensors of a layer's n-gram part. A checkpoint has the table in one piece or in numbered ones."""
    n, wide = layer, streams * width
    conv = (wide, table.kernel) if source.kind == "gguf" else (wide, 1, table.kernel)
    names = _shards(layer, source)
    shape = (table.rows // len(names), table.row_width)
    return [
        *(Wanted(f"{n}.ple_shard.{i}", shape, "mapped", stored=name) for i, name in enumerate(names)),
        Wanted(f"{n}.ple_key", (wide, table.width), "matrix"),
        Wanted(f"{n}.ple_value", (width, table.width), "matrix"),
        *(Wanted(f"{n}.ple_{name}", (wide,), "vector") for name in ("norm_key", "norm_query", "norm_conv")),
        Wanted(f"{n}.ple_conv", conv, "vector"),
    ]


def _shards(layer: int, source: WeightSource) -> list[str]:
    """The stored names of the table's pieces, in order."""
    if source.kind == "gguf":
        return [_GGUF_TABLE]
    prefix, tensors = f"model.layers.{layer}.ple.ple_embedding.ngram_embedding.", source.tensors()
    count = 0
    while f"{prefix}shard_{count}.weight" in tensors:
        count += 1
    return [f"{prefix}shard_{i}.weight" for i in range(count)] or [f"{prefix}weight"]


def make_ngrams(
    layer: int,
    table: TableConfig,
    streams: int,
    eps: float,
    weights: Mapping[str, Weight],
    vectors: Mapping[str, Array],
) -> NgramEmbedding:
    """The part from the loaded tensors."""
    prefix, shards = f"{layer}.ple_", list[Weight]()
    while f"{prefix}shard.{len(shards)}.table" in weights:
        shards.append(weights[f"{prefix}shard.{len(shards)}.table"])
    return NgramEmbedding(
        ngrams=table.ngrams,
        shards=tuple(shards),
        key=Linear(weights[prefix + "key"]),
        value=Linear(weights[prefix + "value"]),
        norm_key=vectors[prefix + "norm_key"].reshape(streams, -1),
        norm_query=vectors[prefix + "norm_query"].reshape(streams, -1),
        norm_conv=vectors[prefix + "norm_conv"].reshape(streams, -1),
        conv=vectors[prefix + "conv"].reshape(-1, table.kernel),
        dilation=table.dilation,
        eps=eps,
    )


def ngram_memory(table: TableConfig, streams: int, width: int, inner: LayerMemory) -> NgramMemory:
    """What the part keeps of a sequence, around the memory of its layer."""
    return NgramMemory(inner, table.past_rows, streams * width, table.ngrams.history)
