"""Records the operations of residual streams, hashed n-grams and block-sparse attention for the native library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from strata_kernels import binding
from strata_kernels.arrays import Seen, address, see, type_name
from strata_kernels.binding import TYPES
from strata_kernels.checks import apart, dense, same_or_apart
from strata_kernels.grids import codebook
from strata_kernels.ops import Array, KvLayer, Rows, Weight
from strata_kernels.ops_streams import IndexLayer, IndexNorm, Ngrams, Sparse
from strata_kernels.recorder import Pointer

_CACHE_TYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}


@dataclass(frozen=True)
class _Where:
    """The i32 arrays of Rows that place each row."""

    positions: Seen
    sequences: Seen
    pages: Seen


def _where(rows: Rows, count: int, name: str) -> _Where:
    return _Where(
        dense(rows.positions, f"{name} positions", (count,), "i32"),
        dense(rows.sequences, f"{name} sequences", (count,), "i32"),
        dense(rows.pages, f"{name} pages", (None, None), "i32"),
    )


class _Native(Protocol):
    @property
    def threads(self) -> int: ...

    def _emit(
        self,
        code: int,
        numbers: Sequence[int],
        pointers: Sequence[Pointer],
        out: Sequence[Seen],
        floats: Sequence[float] = (),
        flags: int = 0,
    ) -> None: ...

    def _check_weight(self, weight: Weight) -> tuple[int, Seen]: ...


class NativeStreamOps:
    """These operations as a part of NativeOps; StreamOps says what each does."""

    def stream_norm(self: _Native, x: Array, weight: Array, eps: float, out: Array) -> None:
        """See StreamOps."""
        source = dense(x, "stream_norm x", (None, None, None))
        factors = dense(weight, "stream_norm weight", source.shape[1:])
        target = dense(out, "stream_norm out", source.shape)
        same_or_apart(target, "stream_norm", source)
        if source.count:
            self._emit(binding.STREAM_NORM, source.shape, (source, factors, target), (target,), (eps,))

    def silu_scaled(self: _Native, x: Array, scale: float, out: Array) -> None:
        """See StreamOps."""
        source = dense(x, "silu_scaled x", tuple(x.shape))
        target = dense(out, "silu_scaled out", source.shape)
        same_or_apart(target, "silu_scaled", source)
        if source.count:
            self._emit(binding.SILU_SCALED, (source.count,), (source, target), (target,), (scale,))

    def stream_mix(self: _Native, x: Array, gate: Array, out: Array) -> None:
        """See StreamOps."""
        source = dense(x, "stream_mix x", (None, None, None))
        factors = dense(gate, "stream_mix gate", source.shape)
        target = dense(out, "stream_mix out", (source.shape[0], source.shape[2]))
        apart(target, "stream_mix", source, factors)
        if source.count:
            self._emit(binding.STREAM_MIX, source.shape, (source, factors, target), (target,))

    def stream_add(self: _Native, y: Array, gate: Array, out: Array) -> None:
        """See StreamOps."""
        target = dense(out, "stream_add out", (None, None, None))
        count, streams, width = target.shape
        source = dense(y, "stream_add y", (count, width))
        factors = dense(gate, "stream_add gate", (count, streams))
        apart(target, "stream_add", source, factors)
        if target.count:
            self._emit(binding.STREAM_ADD, target.shape, (source, factors, target), (target,))

    def stream_gate(self: _Native, key: Array, query: Array, value: Array, out: Array) -> None:
        """See StreamOps."""
        keys = dense(key, "stream_gate key", (None, None, None))
        queries = dense(query, "stream_gate query", keys.shape)
        values = dense(value, "stream_gate value", (keys.shape[0], keys.shape[2]))
        target = dense(out, "stream_gate out", keys.shape)
        apart(target, "stream_gate", keys, queries, values)
        if target.count:
            self._emit(binding.STREAM_GATE, keys.shape, (keys, queries, values, target), (target,))

    def ngram_rows(self: _Native, ids: Array, ngrams: Ngrams, past: Array, rows: Rows, out: Array) -> None:
        """See StreamOps. Running raises IndexError on a sequence or state slot that is not there."""
        tokens = dense(ids, "ngram_rows ids", (None,), "i32")
        count, heads, history = tokens.count, len(ngrams.sizes), ngrams.history
        held = dense(past, "ngram_rows past", (None, None), "i32")
        if held.shape[1] < history:
            raise ValueError(f"ngram_rows: {held.shape[1]} past ids are fewer than the {history} that a token reads")
        if rows.states is None:
            raise ValueError("ngram_rows: the rows have no state slots")
        states = dense(rows.states, "ngram_rows states", (None,), "i32")
        positions = dense(rows.positions, "ngram_rows positions", (count,), "i32")
        sequences = dense(rows.sequences, "ngram_rows sequences", (count,), "i32")
        target = dense(out, "ngram_rows out", (count, heads), "i32")
        apart(target, "ngram_rows", tokens, held, states, positions, sequences)
        if count:
            parts = (ngrams.multipliers, ngrams.sizes, ngrams.offsets)
            constants = tuple(see(np.array(part, np.int64)) for part in parts)  # the step keeps them
            numbers = (count, history, heads, states.count, held.shape[0], ngrams.eos, held.shape[1])
            pointers = (tokens, positions, sequences, states, held, *constants, target)
            self._emit(binding.NGRAM_ROWS, numbers, pointers, (target,))

    def shard_rows(self: _Native, index: Array, shards: tuple[Weight, ...], out: Array) -> None:
        """See StreamOps. Running raises IndexError on a row outside the shards."""
        which = dense(index, "shard_rows index", (None,), "i32")
        one = shards[0]
        if any((shard.type, shard.rows, shard.cols) != (one.type, one.rows, one.cols) for shard in shards):
            raise ValueError("shard_rows: the shards differ in type or shape")
        checked = [self._check_weight(shard) for shard in shards]
        target = dense(out, "shard_rows out", (which.count, one.cols))
        if which.count:
            addresses = see(np.array([address(shard.data) for shard in shards], np.int64))
            points = codebook(one.type)
            grid = None if points is None else see(points)
            numbers = (which.count, one.cols, checked[0][0], one.rows, len(shards))
            self._emit(binding.SHARD_ROWS, numbers, (which, addresses, target, grid), (target,))

    def index_store(self: _Native, keys: Array, norm: IndexNorm, cache: IndexLayer, rows: Rows) -> None:
        """See StreamOps. Running raises IndexError on a slot outside the cache."""
        source = dense(keys, "index_store keys", (None, None))
        count, width = source.shape
        raw, blocks = _index_cache(cache, width)
        where = _where(rows, count, "index_store")
        slots = dense(rows.slots, "index_store slots", (count,), "i32")
        weight = dense(norm.weight, "index_store norm", (width,))
        frequencies = dense(norm.rotary.inverse_frequencies, "index_store frequencies", (None,))
        if 2 * frequencies.count > width:
            raise ValueError(f"index_store: {frequencies.count} pairs do not fit a key of {width}")
        if count:
            pages, page_tokens, _ = raw.shape
            shape = (count, width, page_tokens, pages, cache.block_tokens, frequencies.count)
            pointers = (source, raw, blocks, where.positions, where.sequences, slots, where.pages, weight, frequencies)
            numbers = (*shape, *where.pages.shape)
            floats, flags = (norm.eps, norm.rotary.scale), int(norm.rotary.adjacent)
            self._emit(binding.INDEX_STORE, numbers, pointers, (), floats, flags)

    def index_select(
        self: _Native, q: Array, cache: IndexLayer, rows: Rows, sparse: Sparse, chosen: Array, near: Array
    ) -> None:
        """See StreamOps. Running raises IndexError on a sequence or page number that is not there."""
        queries = dense(q, "index_select q", (None, None, None))
        count, heads, width = queries.shape
        raw, blocks = _index_cache(cache, width)
        where = _where(rows, count, "index_select")
        picked = dense(chosen, "index_select chosen", (count, sparse.blocks), "i32")
        marked = dense(near, "index_select near", (count,), "i32")
        if cache.block_tokens != sparse.block_tokens:
            raise ValueError(f"index_select: blocks of {cache.block_tokens} tokens, {sparse.block_tokens} are needed")
        if count:
            pages, page_tokens, _ = raw.shape
            numbers = (count, heads, width, page_tokens, pages, sparse.block_tokens, sparse.blocks, *where.pages.shape)
            pointers = (queries, blocks, where.positions, where.sequences, where.pages, picked, marked)
            self._emit(binding.INDEX_SELECT, numbers, pointers, (picked, marked))

    def sparse_attention(
        self: _Native, q: Array, chosen: Array, cache: KvLayer, rows: Rows, sparse: Sparse, out: Array
    ) -> None:
        """See StreamOps. Running raises IndexError on a block, sequence or page number that is not there."""
        queries = dense(q, "sparse_attention q", (None, None, None))
        count, heads, width = queries.shape
        kind = type_name(cache.keys)
        if kind not in _CACHE_TYPES:
            raise TypeError(f"sparse_attention: keys must be f16, bf16 or f32, not {kind or 'of another type'}")
        keys = dense(cache.keys, "sparse_attention keys", (None, None, None, width), kind)
        values = dense(cache.values, "sparse_attention values", keys.shape, kind)
        pages, kv_heads, page_tokens, _ = keys.shape
        where = _where(rows, count, "sparse_attention")
        picked = dense(chosen, "sparse_attention chosen", (count, sparse.blocks), "i32")
        target = dense(out, "sparse_attention out", queries.shape)
        apart(target, "sparse_attention", queries, keys, values, picked)
        if count:
            group = _unit_heads(count * kv_heads, heads // kv_heads, self.threads)
            numbers = (count, heads, kv_heads, width, page_tokens, pages, *where.pages.shape, TYPES[_CACHE_TYPES[kind]])
            numbers += (sparse.block_tokens, sparse.blocks, group)
            pointers = (queries, picked, keys, values, where.positions, where.sequences, where.pages, target)
            self._emit(binding.SPARSE_ATTENTION, numbers, pointers, (target,), (width**-0.5,))


def _index_cache(cache: IndexLayer, width: int) -> tuple[Seen, Seen]:
    """Raw keys and block keys, checked."""
    raw = dense(cache.raw, "index keys", (None, None, width))
    blocks = dense(cache.blocks, "index blocks", (raw.shape[0], None, width))
    if not raw.count or not blocks.count or raw.shape[1] % blocks.shape[1]:
        raise ValueError(f"index cache: {list(blocks.shape)} blocks do not fit {list(raw.shape)} keys")
    return raw, blocks


def _unit_heads(pairs: int, per_head: int, threads: int) -> int:
    """Query heads that share the keys fetched for them: fewer when there is little work for many threads."""
    group = per_head
    while group > 1 and pairs * (per_head // group) < 2 * threads:
        group = next(n for n in range(group - 1, 0, -1) if per_head % n == 0)
    return group
