"""Several residual streams (hyper-connections): what a block reads of them and how its result is added to each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strata_engine.models.blocks import Linear, apply_linears
from strata_engine.models.names import Wanted
from strata_kernels.ops import Array, Ops, Weight


@dataclass(frozen=True)
class StreamReader:
    """A gated mean of the normed streams. `norm` [S, W]; `inject` makes the weights of the block's result, or None."""

    norm: Array
    down: Linear
    up: Linear
    inject: Linear | None
    eps: float

    def read(self, x: Array, ops: Ops) -> tuple[Array, Array | None]:
        """x [R, S, W] -> the block's input [R, W] and the raw weights [R, S] for `stream_add`; in workspace."""
        count, streams, width = x.shape
        normed = ops.take(count, streams, width)
        ops.stream_norm(x, self.norm, self.eps, normed)
        linears = (self.down,) if self.inject is None else (self.down, self.inject)
        low, *weights = apply_linears(normed.reshape(count, streams * width), linears, ops)
        ops.silu_scaled(low, 1 / streams, low)
        (gate,) = apply_linears(low, (self.up,), ops)
        mixed = ops.take(count, width)
        ops.stream_mix(normed, gate.reshape(count, streams, width), mixed)
        return mixed, weights[0] if weights else None


def reader_tensors(prefix: str, streams: int, width: int, low_rank: int, inject: bool = True) -> list[Wanted]:
    """The tensors of one reader; `prefix`: "{n}.hc1_", "{n}.hc2_" or "mix_"."""
    wide = streams * width
    found = [
        Wanted(f"{prefix}norm", (wide,), "vector"),
        Wanted(f"{prefix}down", (low_rank, wide), "matrix"),
        Wanted(f"{prefix}up", (wide, low_rank), "matrix"),
    ]
    return [*found, Wanted(f"{prefix}inject", (streams, wide), "matrix")] if inject else found


def make_reader(
    prefix: str, streams: int, eps: float, weights: Mapping[str, Weight], vectors: Mapping[str, Array]
) -> StreamReader:
    """A reader from the loaded tensors."""
    inject = weights.get(f"{prefix}inject")
    return StreamReader(
        norm=vectors[f"{prefix}norm"].reshape(streams, -1),
        down=Linear(weights[f"{prefix}down"]),
        up=Linear(weights[f"{prefix}up"]),
        inject=None if inject is None else Linear(inject),
        eps=eps,
    )


def repeat_rows(x: Array, streams: int, ops: Ops) -> Array:
    """x [R, W] -> [R, S, W], every stream the same."""
    import numpy as np

    count, width = x.shape
    out = ops.take(count * streams, width)
    ops.gather(x, ops.constant(np.repeat(np.arange(count, dtype=np.int32), streams)), out)
    return out.reshape(count, streams, width)
