"""What a storage format is: its block, its size, how blocks become values and back. Torch is imported on use only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata_engine.formats.gguf_types import TYPES_BY_NAME

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class QuantFormat:
    """One storage format. A matrix row is a run of whole blocks of `block` values in `block_bytes` bytes."""

    name: str
    block: int
    block_bytes: int
    packs: bool  # there is an encoder

    @property
    def bits_per_weight(self) -> float:
        """Bits that one value takes, scales included."""
        return self.block_bytes * 8 / self.block

    def row_bytes(self, cols: int) -> int:
        """Bytes of a row of `cols` values. Raises ValueError when these are not whole blocks."""
        if cols % self.block:
            raise ValueError(f"{self.name} rows are blocks of {self.block} values, got {cols}")
        return cols // self.block * self.block_bytes

    def unpack(self, data: Tensor) -> Tensor:
        """Stored bytes u8 [.., bytes] -> values f32 [.., cols]. Raises ValueError on part blocks."""
        from strata_kernels.reference import quant

        return quant.unpack(self.name, data)

    def pack(self, values: Tensor) -> Tensor:
        """Values f32 [.., cols] -> stored bytes u8 [.., bytes]. Raises ValueError where there is no encoder."""
        from strata_kernels.reference import quant

        return quant.pack(self.name, values)


def from_table(name: str, packs: bool) -> QuantFormat:
    """The format of a storage type that GGUF files name, its sizes taken from the type table."""
    storage = TYPES_BY_NAME[name]
    return QuantFormat(name, storage.elements, storage.nbytes, packs)
