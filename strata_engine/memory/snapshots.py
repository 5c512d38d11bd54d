"""Copies of recurrent state at ends of pages: what a shared prefix needs beside its pages when a model has a state.

Keys and values can be cut after any token, a state is worth something after exactly one. Copies are as large as a slot,
so there are few of them: the one used longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from strata_engine.memory.kv import Saved
from strata_engine.memory.layers import Layers
from strata_engine.memory.prefix_tree import Node

Copy = tuple[Saved, ...]  # of each layer


def most_copies(sequences: int) -> int:
    """Copies kept beside the slots of so many sequences, where there is room: as many, at least four."""
    return max(4, sequences)


class Snapshots:
    """At most `most` copies of a slot, each for the node whose page's last token it stands after."""

    def __init__(self, layers: Layers, caches: Sequence[Any], most: int) -> None:
        self.most = most
        self._layers = [(layer, cache) for layer, cache in zip(layers, caches, strict=True) if layer is not None]
        self._copies: OrderedDict[Node, Copy] = OrderedDict()  # used longest ago first

    def __len__(self) -> int:
        return len(self._copies)

    def __contains__(self, node: Node) -> bool:
        return node in self._copies

    def save(self, node: Node, slot: int) -> None:
        """Keep what is in the slot for this node; another copy may have to go."""
        self._copies.pop(node, None)
        while len(self._copies) >= self.most:
            self._copies.popitem(last=False)
        self._copies[node] = tuple(layer.save(cache, slot) for layer, cache in self._layers)

    def load(self, node: Node, slot: int) -> None:
        """Put the node's copy into a slot. Raises KeyError without one."""
        self._copies.move_to_end(node)
        for (layer, cache), saved in zip(self._layers, self._copies[node], strict=True):
            layer.load(cache, slot, saved)

    def drop(self, node: Node) -> None:
        """The node's copy is not needed any more, if there is one."""
        self._copies.pop(node, None)
