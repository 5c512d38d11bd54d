"""What DFlash2 adds to DFlash: convolutions over the rows of a block, and a walk over the best tokens of each row.

*Convolution*: before and after each sublayer a row is mixed with those before it in its block; the weights are a fixed
part and a part made from the row itself, shared by groups of channels. *Walk*: rows guess without knowing what the row
before was given; a low-rank score of pairs, seen through the row, chooses among the best tokens of each. Context rows
know nothing of either. Source: notes/speculative.md 2.2 and 2.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strata_engine.models.blocks import Attention, Linear, Mlp
from strata_engine.models.dflash_config import DFlashConfig, SecondConfig
from strata_engine.models.names import Wanted
from strata_kernels.ops import Array, KvLayer, Ops, Rows, Weight

Floats = NDArray[np.float32]
_SELECTOR = "candidate_selector"


@dataclass(frozen=True)
class Convolution:
    """Of one sublayer. `base` f32 [2, taps, W]: side 0 filters what goes in, side 1 what comes out."""

    base: Array
    change: Linear

    def changes(self, normed: Array, ops: Ops) -> Array:
        """What each row adds to the weights, f32 [R, 2 * taps * groups], in the workspace of the enclosing scope."""
        out = ops.take(normed.shape[0], self.change.rows)
        ops.linear(normed, [self.change.weight], [out])
        return out

    def filter(self, x: Array, changes: Array, side: int, rows: Rows, ops: Ops) -> Array:
        """x [R, W] filtered, in the workspace of the enclosing scope."""
        out = ops.take(*x.shape)
        ops.block_conv(x, changes, self.base, side, rows, out)
        return out


@dataclass(frozen=True)
class WithConvolutions:
    """A layer whose two sublayers are filtered at both ends."""

    attention: Attention
    mlp: Mlp
    attention_conv: Convolution
    mlp_conv: Convolution

    def forward(self, x: Array, cache: KvLayer, rows: Rows, ops: Ops) -> None:
        """x [R, W] goes through the layer."""
        with ops.scope():
            normed, changes = self._begin(x, self.attention.norm, self.attention_conv, ops)
            mixed = self.attention.mix(self.attention_conv.filter(normed, changes, 0, rows, ops), cache, rows, ops)
            self._end(x, mixed, self.attention.o, (self.attention_conv, changes), rows, ops)
        with ops.scope():
            normed, changes = self._begin(x, self.mlp.norm, self.mlp_conv, ops)
            inner = self.mlp.inner(self.mlp_conv.filter(normed, changes, 0, rows, ops), ops)
            self._end(x, inner, self.mlp.down, (self.mlp_conv, changes), rows, ops)

    def _begin(self, x: Array, norm: Array, conv: Convolution, ops: Ops) -> tuple[Array, Array]:
        normed = ops.take(*x.shape)
        ops.rms_norm(x, norm, self.attention.eps, normed)
        return normed, conv.changes(normed, ops)

    @staticmethod
    def _end(x: Array, inner: Array, last: Linear, how: tuple[Convolution, Array], rows: Rows, ops: Ops) -> None:
        """x += the filtered product of a sublayer's last matrix."""
        out = ops.take(*x.shape)
        ops.linear(inner, [last.weight], [out])
        ops.add(x, how[0].filter(out, how[1], 1, rows, ops), x)


@dataclass(frozen=True)
class Selector:
    """The walk. `hidden` [rank, W]; `before`, `after`: mapped tables [V, rank], a row for each token."""

    config: SecondConfig
    hidden: Linear
    before: Weight
    after: Weight
    multiplier: float
    softcap: float

    def project(self, hidden: Array, ops: Ops, out: Array) -> None:
        """out f32 [R, rank]: how each row sees pairs."""
        ops.linear(hidden, [self.hidden.weight], [out])

    def walk(self, anchor: int, logits: Floats, views: Floats) -> tuple[list[int], list[float]]:
        """The tokens chosen row by row, and the share of each among its row's candidates.

        logits f32 [n, V] of the rows that guess, views f32 [n, rank] of `project`. Lowest id first among equals.
        """
        tokens, shares, last = [], [], anchor
        for ids, values, view in zip(*self.candidates(logits), views, strict=True):
            scores = values + table_rows(self.after, ids) @ (table_rows(self.before, [last])[0] * view)
            best = int(np.argmax(scores))
            last = int(ids[best])
            tokens.append(last)
            shares.append(float(1 / np.exp(scores - scores[best]).sum()))
        return tokens, shares

    def candidates(self, logits: Floats) -> tuple[NDArray[np.int64], Floats]:
        """Ids in ascending order and scores of the best of each row, [n, top_k]."""
        count = min(self.config.top_k, logits.shape[1])
        ids = np.sort(np.argpartition(-logits, count - 1, axis=1)[:, :count], axis=1)
        values = np.take_along_axis(logits, ids, 1) * np.float32(self.multiplier)
        if self.softcap:
            values = np.float32(self.softcap) * np.tanh(values / np.float32(self.softcap))
        return ids, values


def table_rows(table: Weight, ids: Sequence[int] | NDArray[np.int64]) -> Floats:
    """Rows of a table of floats, f32 [n, cols]."""
    rows = np.asarray(table.data)[np.asarray(ids, np.int64)].copy()
    if table.type == "BF16":
        return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return rows.view(np.float16 if table.type == "F16" else np.float32).astype(np.float32)


def second_tensors(config: DFlashConfig, second: SecondConfig) -> list[Wanted]:
    """The tensors that only version 2 has."""
    width, vocab, rank = config.width, config.vocab_size, second.rank
    changes = 2 * second.taps * width // second.group
    found = []
    for n in range(config.layers):
        for name in ("attention_conv", "mlp_conv"):
            stored = f"layers.{n}.{name}"
            found += [
                Wanted(f"{n}.{name}_base", (2, second.taps, width), "vector", stored=f"{stored}.base_kernel"),
                Wanted(f"{n}.{name}", (changes, width), "matrix", stored=f"{stored}.kernel_projection.weight"),
            ]
    return [
        *found,
        Wanted("selector", (rank, width), "matrix", stored=f"{_SELECTOR}.hidden_projection.weight"),
        Wanted("before", (vocab, rank), "mapped", stored=f"{_SELECTOR}.predecessor_codebook"),
        Wanted("after", (vocab, rank), "mapped", stored=f"{_SELECTOR}.successor_codebook"),
    ]


def convolutions(
    second: SecondConfig, n: int, weights: Mapping[str, Weight], vectors: Mapping[str, Array]
) -> tuple[Convolution, Convolution]:
    """Those of a layer: around attention, around the MLP."""
    first, last = (
        Convolution(vectors[f"{n}.{name}_base"].reshape(2, second.taps, -1), Linear(weights[f"{n}.{name}"]))
        for name in ("attention_conv", "mlp_conv")
    )
    return first, last


def selector(config: DFlashConfig, weights: Mapping[str, Weight]) -> Selector | None:
    """The walk of version 2; None for version 1, whose rows each take their best token."""
    if config.second is None:
        return None
    tables = weights["before.table"], weights["after.table"]
    return Selector(config.second, Linear(weights["selector"]), *tables, config.multiplier, config.softcap)
