"""Recurrent state of a layer: fixed bytes for each sequence, f32, in a slot of its own.

With drafts the state stays at the last certain row of a step, and the inputs of the rows after it wait in the slot. The
next step takes up those that turned out to count: nothing is copied, nothing runs twice but its recurrence. The ring of
the convolution is as much longer as there are drafts, so rows that do not count are written over.
"""

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

    @property
    def draft_bytes(self) -> int:
        """A row of the ring and one that waits."""
        return 4 * (self.conv_width + self.pending_width)

    @property
    def pending_width(self) -> int:
        """Floats of a row that waits (DeltaRule.pending_width): the convolution's channels are q, k and v."""
        values = self.heads * self.value_width
        return (self.conv_width - values) // 2 + values + 2 * self.heads

    def token_bytes(self, kv_type: str) -> int:
        """Nothing grows with the tokens."""
        return 0

    def allocate(self, room: Room, zeros: Zeros) -> StateLayer:
        """Raises MemoryError."""
        conv = zeros(room.slots, self.conv_rows + room.drafts, self.conv_width)
        state = zeros(room.slots, self.heads, self.key_width, self.value_width)
        return StateLayer(conv, state, zeros(room.slots, room.drafts, self.pending_width) if room.drafts else None)

    def clear(self, cache: StateLayer, pages: Sequence[int], slot: int) -> None:
        """Zero the slot."""
        for array in (cache.conv, cache.state, cache.pending):
            if array is not None:
                array[slot] = 0

    def save(self, cache: StateLayer, slot: int) -> Saved:
        """Copies of the slot's arrays; nothing may be pending."""
        return cache.conv[slot].copy(), cache.state[slot].copy()

    def load(self, cache: StateLayer, slot: int, saved: Saved) -> None:
        """Put them back."""
        cache.conv[slot], cache.state[slot] = saved
