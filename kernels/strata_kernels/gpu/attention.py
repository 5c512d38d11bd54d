"""Rotation, the paged cache, and attention over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strata_kernels.gpu.arrays import DeviceArray
from strata_kernels.gpu.core import FEW_ROWS, Core
from strata_kernels.gpu.dense import power
from strata_kernels.ops import KvLayer, Rotary, Rows, value_row_bytes
from strata_kernels.ops_streams import Sparse

STRETCH, SPLITS = 64, 128  # of triton/attention.py: tokens at least, number at most
UNIT = 32  # tokens of a tile, where a page has as many
CHUNK = 32  # elements of a query that are multiplied at once
PART_BYTES = 32 << 20  # of unfinished sums at once
KEY_KINDS = ("f16", "bf16", "f32", "i8")


@dataclass(frozen=True)
class Cache:
    """A KvLayer as kernels take it."""

    keys: DeviceArray
    values: DeviceArray
    key_scales: DeviceArray
    value_scales: DeviceArray

    @property
    def arrays(self) -> tuple[DeviceArray, ...]:
        """As arguments."""
        return self.keys, self.values, self.key_scales, self.value_scales

    @property
    def pages(self) -> int:
        """Number of pages."""
        return self.keys.shape[0]

    def constants(self) -> dict[str, Any]:
        """What a kernel is compiled for."""
        _, heads, page, width = self.keys.shape
        return {"KEYS": self.keys.dtype, "VALUES": self.values.dtype, "KV_HEADS": heads, "WIDTH": width, "PAGE": page}


@dataclass(frozen=True)
class Tile:
    """How a program of the prompt kernel is cut: rows, tokens, warps."""

    rows: int
    tokens: int
    warps: int


class AttentionOps(Core):
    """One group of GpuOps."""

    def rope(self, x: Any, rows: Rows, rotary: Rotary) -> None:
        """As Ops."""
        count, heads, width = x.shape
        positions, pairs = rotary.positions(rows), rotary.inverse_frequencies.shape[0]
        axes = rotary.axes if len(positions.shape) == 2 else None
        if 2 * pairs > width:
            raise ValueError(f"rope: {pairs} pairs do not fit a head of {width}")
        together = power(heads, 8)
        values = (x, positions, rotary.inverse_frequencies, positions if axes is None else axes, count, rotary.scale)
        self._run(
            "rope",
            (count, -(-heads // together)),
            values,
            HEADS=heads,
            WIDTH=width,
            PAIRS=pairs,
            ADJACENT=rotary.adjacent,
            AXES=axes is not None,
            H=together,
            P=power(pairs, 1024),
        )

    def kv_store(self, k: Any, v: Any, cache: KvLayer, rows: Rows) -> None:
        """As Ops; a row whose slot is outside the cache is not stored."""
        own = self._cache("kv_store", cache, k.shape[2])
        slots = own.pages * cache.page_tokens
        block = power(k.shape[2], 4096)
        self._run(
            "kv_store",
            (k.shape[0], own.keys.shape[1]),
            (k, v, *own.arrays, rows.slots, slots),
            warps=1 if block <= 128 else 4,
            D=max(block, 32),
            **own.constants(),
        )

    def attention(self, q: Any, cache: KvLayer, rows: Rows, scale: float, out: Any) -> None:
        """As Ops. At most FEW_ROWS rows: the bits of each depend on nothing but its own tokens; more: f16 products."""
        count, heads, width = q.shape
        own = self._cache("attention", cache, width)
        if heads % own.keys.shape[1]:
            raise ValueError(f"attention: {heads} heads are no multiple of {own.keys.shape[1]} kv heads")
        if count <= FEW_ROWS:
            with self.scope():
                self._few(q, own, rows, scale, out)
            return
        tile = prompt_tile(width)
        sequences, table = rows.pages.shape
        first = rows.last if rows.first is None else rows.first
        where = rows.last, first, rows.sequences, rows.pages
        self._run(
            "attention_prompt",
            (-(-count // tile.rows), heads, sequences),
            (q, *own.arrays, *where, out, count, table, own.pages, float(scale), width),
            warps=tile.warps,
            FIRST=rows.first is not None,
            HEADS=heads,
            M=tile.rows,
            N=tile.tokens,
            C=min(CHUNK, power(width, 4096)),
            D=power(width, 4096),
            **own.constants(),
        )

    def sparse_attention(self, q: Any, chosen: Any, cache: KvLayer, rows: Rows, sparse: Sparse, out: Any) -> None:
        """As Ops."""
        own = self._cache("sparse_attention", cache, q.shape[2])
        stretches = -(-(sparse.blocks + 1) * sparse.block_tokens // STRETCH)
        some = max(1, PART_BYTES // (q.shape[1] * min(stretches, SPLITS) * q.shape[2] * 4))
        for start in range(0, q.shape[0], some):
            rows_of = slice(start, start + some)
            part = Rows(rows.positions[rows_of], rows.sequences[rows_of], rows.slots[rows_of], rows.pages)
            with self.scope():
                chosen_of = chosen[rows_of], sparse
                self._few(q[rows_of], own, part, q.shape[2] ** -0.5, out[rows_of], chosen_of)

    def _few(
        self, q: Any, cache: Cache, rows: Rows, scale: float, out: Any, chosen: tuple[Any, Sparse] | None = None
    ) -> None:
        """Split over the tokens, then joined. `chosen`: the blocks of each row, for sparse attention."""
        count, heads, width = q.shape
        sequences, table = rows.pages.shape
        page, kv_heads = cache.keys.shape[2], cache.keys.shape[1]
        most = table * page
        first = rows.last if rows.first is None else rows.first
        same: dict[str, Any] = {"FIRST": rows.first is not None, "SPARSE": 0, "GROUP": 1, "HEADS": heads}
        if chosen is not None:
            same |= {"SPARSE": chosen[1].blocks, "GROUP": chosen[1].block_tokens}
            most = min(most, (chosen[1].blocks + 1) * chosen[1].block_tokens)
        splits = min(SPLITS, -(-most // STRETCH) + (rows.first is not None))
        part = self.take(count, heads, splits, width)
        tops, sums = self.take(count, heads, splits), self.take(count, heads, splits)
        where = rows.last, first, rows.sequences, rows.pages, rows.pages if chosen is None else chosen[0]
        self._run(
            "attention_split",
            (kv_heads, splits, count),
            (q, *cache.arrays, *where, part, tops, sums, sequences, table, cache.pages, splits, float(scale), width),
            warps=4 if width <= 128 else 8,
            M=power(2 * (heads // kv_heads), 4096),
            N=UNIT,
            C=min(CHUNK, power(width, 4096)),
            D=power(width, 4096),
            **same,
            **cache.constants(),
        )
        values = (rows.last, first, part, tops, sums, out, table * page, splits)
        self._run("attention_join", (count, heads), values, WIDTH=width, D=32, **same)

    def _cache(self, name: str, cache: KvLayer, width: int) -> Cache:
        """Raises TypeError, ValueError for a cache that no kernel reads."""
        keys, values = self._array(cache.keys), self._array(cache.values)
        if keys.dtype not in KEY_KINDS or values.dtype not in (*KEY_KINDS, "u8"):
            raise TypeError(f"{name}: keys of {keys.dtype} with values of {values.dtype} are not known")
        stored = value_row_bytes(width) if values.dtype == "u8" else width
        if keys.shape[3] != width or values.shape != (*keys.shape[:3], stored) or not keys.count:
            raise ValueError(f"{name}: keys {keys.shape} and values {values.shape} do not fit heads of {width}")
        scales = []
        for what, codes, own in (("keys", keys, cache.key_scales), ("values", values, cache.value_scales)):
            if (codes.dtype == "i8") != (own is not None):
                raise ValueError(f"cache: i8 {what}, and no others, have scales")
            scales.append(codes if own is None else self._array(own))
        return Cache(keys, values, scales[0], scales[1])


def prompt_tile(width: int) -> Tile:
    """Rows, tokens and warps of a program for heads of this width: registers and LDS are what limits them."""
    return Tile(64 if width <= 128 else 32, UNIT, 8)
