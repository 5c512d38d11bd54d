"""Drafts of an EAGLE-3 drafter: one layer over three residuals of the target, chained (heads.py, models/eagle3.py).

The target's residuals wait in a backlog until the drafter is asked. Its ids are those of a smaller vocabulary: inside
the chain they are turned into the target's where the next row looks its embedding up, and at the end for the proposal.
A token outside that vocabulary is never guessed, so each one that comes ends a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strata_engine.core.batch import Batch
from strata_engine.draft.base import DraftContext, Wants
from strata_engine.draft.heads import HeadDrafter
from strata_engine.errors import UsageError
from strata_engine.formats.base import WeightSource
from strata_engine.formats.open import open_weights
from strata_engine.models.eagle3 import Eagle3, load_eagle3
from strata_engine.models.eagle3_config import read_eagle3
from strata_kernels.ops import Array, Ops

DEEPEST = 8
USUAL = 5


@dataclass(frozen=True)
class EagleLink:
    """The drafter's layer as the link of a chain: known rows bring residuals, later ones its own state."""

    net: Eagle3

    @property
    def vocab_size(self) -> int:
        """Of the drafter."""
        return self.net.config.draft_vocab_size

    @property
    def states_width(self) -> int:
        """Of the three residuals together."""
        return self.net.states_width

    def forward(self, batch: Batch, states: Array | None, ops: Ops) -> Array:
        """The layer's states of the rows that want logits."""
        if states is None:
            raise ValueError("the layer takes states, and none were given")
        cache: Any = batch.caches[0]
        return self.net.forward(batch.ids, states, cache, batch.rows, ops, batch.logit_rows)

    def logits(self, left: Array, batch: Batch, ops: Ops, out: Array) -> None:
        """out f32 [n, Vd]."""
        self.net.logits(left, ops, out)


class EagleDrafter(HeadDrafter):
    """The chain over one drafter."""

    name = "eagle3"

    def __init__(self, net: Eagle3, most: int, p_min: float = 0.0, source: WeightSource | None = None) -> None:
        """`source`: kept open, for rows of its embedding may lie in the file."""
        super().__init__(EagleLink(net), net.memory(), most, p_min, net.targets)
        self.wants = Wants(taps=net.config.taps)
        self._net, self._source = net, source

    def report(self) -> dict[str, Any]:
        """Its size and shape, and what it shares with the model."""
        config = self._net.config
        return {
            "bytes": self._net.packed_bytes,
            "hidden_size": config.width,
            "vocab_size": config.vocab_size,
            "draft_vocab_size": config.draft_vocab_size,
            "taps": list(config.taps),
            "taps_from": config.taps_from,
            "shared": list(self._net.shared),
            **super().report(),
        }


def open_eagle3(context: DraftContext) -> EagleDrafter:
    """The drafter at `context.draft`. Raises UsageError naming both values that do not fit; NotFound, CorruptFile."""
    path, spec, options = context.draft, context.config.spec, context.config
    if path is None:
        raise UsageError("--spec eagle3 needs a drafter", hint="name its directory or reference with --draft")
    source = open_weights(path)
    try:
        config = read_eagle3(source, context.model.config)
        net = load_eagle3(source, config, context.model, context.ops, options.mmap, options.quantize_rest)
    except BaseException:
        source.close()
        raise
    return EagleDrafter(net, min(spec.n_max or USUAL, DEEPEST), spec.p_min, source)
