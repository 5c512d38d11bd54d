"""Residual streams, hashed n-grams, and the index of block-sparse attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from strata_kernels.gpu.arrays import DeviceArray
from strata_kernels.gpu.core import Core
from strata_kernels.gpu.dense import ELEMENTS, power
from strata_kernels.ops import Rows, Weight
from strata_kernels.ops_streams import IndexLayer, IndexNorm, Ngrams, Sparse

SCORE_BYTES = 32 << 20  # of scores at once
TILE = 32  # blocks of a program that scores


class StreamOps(Core):
    """One group of GpuOps."""

    def stream_norm(self, x: Any, weight: Any, eps: float, out: Any) -> None:
        """As StreamOps."""
        rows, streams, width = x.shape
        values = (x, weight, out, float(eps))
        self._run("stream_norm", (rows * streams,), values, STREAMS=streams, WIDTH=width, BLOCK=power(width, 1024))

    def silu_scaled(self, x: Any, scale: float, out: Any) -> None:
        """As StreamOps."""
        count = self._array(x).count
        self._run("silu_scaled", (-(-count // ELEMENTS),), (x, out, count, float(scale)), BLOCK=ELEMENTS)

    def stream_mix(self, x: Any, gate: Any, out: Any) -> None:
        """As StreamOps."""
        rows, streams, width = x.shape
        block = power(width, ELEMENTS)
        self._run("stream_mix", (rows, -(-width // block)), (x, gate, out), STREAMS=streams, WIDTH=width, BLOCK=block)

    def stream_add(self, y: Any, gate: Any, out: Any) -> None:
        """As StreamOps."""
        rows, streams, width = out.shape
        block = power(width, ELEMENTS)
        grid = rows * streams, -(-width // block)
        self._run("stream_add", grid, (y, gate, out), STREAMS=streams, WIDTH=width, BLOCK=block)

    def stream_gate(self, key: Any, query: Any, value: Any, out: Any) -> None:
        """As StreamOps."""
        rows, streams, width = key.shape
        values = (key, query, value, out, width**-0.5)
        self._run("stream_gate", (rows * streams,), values, STREAMS=streams, WIDTH=width, BLOCK=power(width, 1024))

    def ngram_rows(self, ids: Any, ngrams: Ngrams, past: Any, rows: Rows, out: Any) -> None:
        """As StreamOps; a row whose state slot is outside `past` reads and writes nothing."""
        if rows.states is None:
            raise ValueError("ngram_rows: the rows have no state slots")
        count, heads = out.shape
        slots, ring = past.shape
        where = rows.positions, rows.sequences, rows.states
        self._run(
            "ngram_rows",
            (count,),
            (ids, past, *where, *self._tables(ngrams), out, slots, ngrams.eos),
            warps=1,
            RING=ring,
            HISTORY=ngrams.history,
            HEADS=heads,
            J=power(heads, 4096),
        )
        self._run("ngram_keep", (count,), (ids, past, *where, count, slots), warps=1, RING=ring)

    def _tables(self, ngrams: Ngrams) -> tuple[DeviceArray, ...]:
        """Multipliers, sizes and offsets on the device, uploaded once."""
        kept = self.__dict__.setdefault("_ngram_tables", {})
        if ngrams not in kept:
            parts = (ngrams.multipliers, ngrams.sizes, ngrams.offsets)
            kept[ngrams] = tuple(self.constant(np.array(part, np.int64)) for part in parts)
        return kept[ngrams]

    def shard_rows(self, index: Any, shards: tuple[Weight, ...], out: Any) -> None:
        """Raises ValueError: tables larger than memory are read by the host alone."""
        size = sum(shard.data.nbytes for shard in shards) / 1e9
        raise ValueError(
            f"shard_rows: a table of {size:.1f} GB in mapped files is read by the CPU only; "
            "run this model with --device cpu"
        )

    def index_store(self, keys: Any, norm: IndexNorm, cache: IndexLayer, rows: Rows) -> None:
        """As StreamOps; a row whose slot is outside the cache is not stored."""
        count, width = keys.shape
        slots = cache.raw.shape[0] * cache.page_tokens
        block = power(width, 4096)
        self._run("index_raw", (count,), (keys, cache.raw, rows.slots, slots), warps=1, WIDTH=width, D=block)
        rotary = norm.rotary
        pairs = rotary.inverse_frequencies.shape[0]
        where = norm.weight, rotary.inverse_frequencies, rows.positions, rows.slots
        self._run(
            "index_blocks",
            (count,),
            (cache.raw, cache.blocks, *where, slots, float(norm.eps), float(rotary.scale)),
            warps=1,
            GROUP=cache.block_tokens,
            WIDTH=width,
            PAIRS=pairs,
            ADJACENT=rotary.adjacent,
            D=block,
            P=power(pairs, 4096),
        )

    def index_select(self, q: Any, cache: IndexLayer, rows: Rows, sparse: Sparse, chosen: Any, near: Any) -> None:
        """As StreamOps: the choice is exact, and made where the scores are."""
        in_page = cache.blocks.shape[1]
        most = rows.pages.shape[1] * in_page
        some = max(16, SCORE_BYTES // (4 * most) // 16 * 16)
        for start in range(0, q.shape[0], some):
            part = slice(start, start + some)
            own = Rows(rows.positions[part], rows.sequences[part], rows.slots[part], rows.pages)
            with self.scope():
                self._select(q[part], cache, own, sparse, (chosen[part], near[part]))

    def _select(self, q: Any, cache: IndexLayer, rows: Rows, sparse: Sparse, outs: tuple[Any, Any]) -> None:
        count, heads, width = q.shape
        sequences, table = rows.pages.shape
        page_count, in_page, _ = cache.blocks.shape
        most, dense = table * in_page, sparse.dense_tokens
        found = self.take(count, most)
        where = rows.positions, rows.sequences, rows.pages
        self._run(
            "index_scores",
            (-(-most // TILE), count),
            (q, cache.blocks, *where, found, sequences, table, page_count, dense),
            HEADS=heads,
            WIDTH=width,
            GROUP=sparse.block_tokens,
            IN_PAGE=in_page,
            N=TILE,
            D=power(width, 4096),
        )
        values = (found, rows.positions, *outs, most, dense)
        sizes: dict[str, int] = {"N": power(most, 1024), "FEW": power(most, 256)}
        self._run("index_pick", (count,), values, BLOCKS=sparse.blocks, GROUP=sparse.block_tokens, **sizes)
