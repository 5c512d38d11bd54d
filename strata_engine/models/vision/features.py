"""How a decoder takes image features: in place of embeddings, and added after its first layers (deepstack)."""

from __future__ import annotations

from strata_engine.core.batch import Batch
from strata_kernels.ops import Array, Ops


def put_features(x: Array, batch: Batch, ops: Ops) -> None:
    """Rows of x [R, W] that stand for image features become these. Nothing for a model that sees nothing."""
    if batch.features is not None and batch.feature_rows is not None:
        ops.put_rows(batch.features, batch.feature_rows, 0, x)


def add_deepstack(x: Array, batch: Batch, layer: int, ops: Ops) -> None:
    """x [R, W] += what the tower has for image rows after decoder layer `layer`, if anything."""
    if batch.features is None or batch.feature_rows is None:
        return
    column = (layer + 1) * x.shape[1]
    if column < batch.features.shape[1]:
        ops.put_rows(batch.features, batch.feature_rows, column, x, add=True)
