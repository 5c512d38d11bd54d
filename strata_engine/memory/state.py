"""Recurrent state of a layer: fixed bytes for each sequence, f32, in a slot of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata_engine.memory.kv import Room, Saved, Zeros
from strata_kernels.ops import StateLayer


@dataclass(frozen=True)
class StateMemory:
    """What a gated delta net keeps of a sequence: past inputs of its convolution, a matrix for each value head."""

    conv_rows: int  # (kernel - 1) * dilation
    conv_width: int
    heads: int
    key_width: int
    value_width: int

    @property
    def slot_bytes(self) -> int:
        """Bytes of one sequence."""
        return 4 * (self.conv_rows * self.conv_width + self.heads * self.key_width * self.value_width)

    def token_bytes(self, kv_type: str) -> int:
        """Nothing grows with the tokens."""
        return 0

    def allocate(self, room: Room, zeros: Zeros) -> StateLayer:
        """Raises MemoryError."""
        conv = zeros(room.slots, self.conv_rows, self.conv_width)
        return StateLayer(conv, zeros(room.slots, self.heads, self.key_width, self.value_width))

    def clear(self, cache: StateLayer, pages: Sequence[int], slot: int) -> None:
        """Zero the slot."""
        cache.conv[slot] = 0
        cache.state[slot] = 0

    def save(self, cache: StateLayer, slot: int) -> Saved:
        """Copies of the slot's arrays."""
        return cache.conv[slot].copy(), cache.state[slot].copy()

    def load(self, cache: StateLayer, slot: int, saved: Saved) -> None:
        """Put them back."""
        cache.conv[slot], cache.state[slot] = saved
