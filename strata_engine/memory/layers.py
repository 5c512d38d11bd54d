"""The memory of all layers together: bytes, and making it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strata_engine.config import kv_pair
from strata_engine.errors import OutOfMemory
from strata_engine.memory.kv import LayerMemory, PerLayer, Room, Zeros
from strata_engine.units import format_bytes
from strata_kernels import arrays

Layers = Sequence[LayerMemory | None]


def page_bytes(layers: Layers, page_tokens: int, kv_type: str) -> int:
    """Bytes of one page over all layers. Raises UsageError for an unknown type."""
    kv_pair(kv_type)
    return page_tokens * sum(layer.token_bytes(kv_type) for layer in layers if layer is not None)


def slot_bytes(layers: Layers, drafts: int = 0) -> int:
    """Bytes of one sequence's slot over all layers, with room for `drafts`; 0 where all is kept in pages."""
    return sum(layer.slot_bytes + drafts * layer.draft_bytes for layer in layers if layer is not None)


def allocate(layers: Layers, room: Room, zeros: Zeros | PerLayer = arrays.zeros) -> tuple[Any, ...]:
    """The caches, made by `zeros` of the ops; None where a layer keeps nothing.

    Raises OutOfMemory with the numbers, UsageError: no such type.
    """
    in_page = page_bytes(layers, room.page_tokens, room.kv_type)

    def maker(number: int) -> Zeros:
        return zeros.of(number) if isinstance(zeros, PerLayer) else zeros

    try:
        return tuple(None if one is None else one.allocate(room, maker(n)) for n, one in enumerate(layers))
    except MemoryError as error:
        kv, states = room.pages * in_page, room.slots * slot_bytes(layers, room.drafts)
        text = f"{format_bytes(kv)} for {room.pages * room.page_tokens} tokens of keys and values"
        if states:
            text += f" and {format_bytes(states)} for the state of {room.slots} sequences"
        hint = "lower the context (--ctx) or the number of sequences (--parallel)"
        raise OutOfMemory(f"{text} could not be allocated", hint=hint) from error
