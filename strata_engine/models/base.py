"""The Model protocol: what the executor needs from any family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from strata_engine.core.batch import Batch, Hidden
from strata_engine.formats.base import WeightSource
from strata_engine.memory.kv import LayerMemory
from strata_engine.models.config import ModelConfig
from strata_engine.models.names import Wanted
from strata_kernels.ops import Array, Ops, Weight


class Model(Protocol):
    """A loaded model. Calls only Ops, so that a step can be recorded; keeps no state of any sequence."""

    config: ModelConfig
    sees: ClassVar[bool]  # takes the features of an image tower, where the checkpoint has one

    @classmethod
    def configure(cls, source: WeightSource) -> ModelConfig:
        """Read the config of a checkpoint. Raises CorruptFile, UsageError."""
        ...

    @classmethod
    def wanted(cls, config: ModelConfig, source: WeightSource) -> list[Wanted]:
        """Every tensor the model is made of, in the order of use."""
        ...

    def __init__(self, config: ModelConfig, weights: Mapping[str, Weight], vectors: Mapping[str, Array]) -> None:
        """Take the loaded tensors, by our names."""
        ...

    @property
    def final_width(self) -> int:
        """F of `Batch.final`: elements of a row that a draft head takes."""
        ...

    def memory(self) -> list[LayerMemory | None]:
        """What each layer keeps of a sequence, in layer order; None where it keeps nothing."""
        ...

    def forward(self, batch: Batch, ops: Ops) -> Hidden:
        """The last residual stream of every row, and what the batch keeps for drafters.

        Takes workspace from the scope that encloses the call.
        """
        ...

    def logits(self, hidden: Hidden, rows: Array, ops: Ops, out: Array) -> None:
        """out f32 [len(rows), vocab] = logits of the given rows (i32)."""
        ...
