"""Drafts of the model's own head for the token after next (multi-token prediction), chained (heads.py).

Row S of the head takes the model's state of token S after the final norm and the embedding of token S + 1, and gives
token S + 2; a further row of the chain takes the draft before it and the head's own normed state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strata_engine.core.batch import Batch
from strata_engine.draft.base import DraftContext
from strata_engine.draft.heads import HeadDrafter
from strata_engine.errors import NotFound
from strata_engine.models.exp_draft import StreamDraft, load_stream_draft
from strata_engine.models.llama import Llama
from strata_engine.models.mtp import DraftHead, load_draft
from strata_engine.models.qwen4_exp import Qwen4Exp
from strata_kernels.ops import Array, Ops

DEEPEST = 8  # heads are trained for a step or two; what they guess further on is rarely right
USUAL = 4


@dataclass(frozen=True)
class HeadLink:
    """A draft head as the link of a chain."""

    head: DraftHead | StreamDraft

    @property
    def vocab_size(self) -> int:
        """Rows of the output head."""
        return self.head.head.rows

    @property
    def states_width(self) -> int:
        """Of the model's states."""
        return self.head.states_width

    def forward(self, batch: Batch, states: Array | None, ops: Ops) -> Array:
        """The head's states of the rows that want logits."""
        assert states is not None, "a draft head has states"
        cache: Any = batch.caches[0]
        return self.head.forward(batch.ids, states, cache, batch.rows, ops, batch.logit_rows)

    def logits(self, left: Array, batch: Batch, ops: Ops, out: Array) -> None:
        """out f32 [n, V]."""
        self.head.logits(left, ops, out)


class MtpDrafter(HeadDrafter):
    """The chain over the model's own head."""

    name = "mtp"

    def __init__(self, head: DraftHead | StreamDraft, most: int, p_min: float = 0.0) -> None:
        super().__init__(HeadLink(head), head.memory(), most, p_min)
        self._head = head

    def report(self) -> dict[str, Any]:
        """Its size and shape."""
        return {"bytes": self._head.packed_bytes, **super().report()}


def open_mtp(context: DraftContext) -> MtpDrafter:
    """The draft head in the target's own checkpoint. Raises NotFound where there is none, else as load_model."""
    spec, model, source = context.config.spec, context.model, context.source
    where = str(source.paths[0]) if source.paths else source.kind
    head: DraftHead | StreamDraft | None = None
    if isinstance(model, Qwen4Exp):
        head = load_stream_draft(source, model, context.ops, context.config.mmap)
    elif isinstance(model, Llama):
        head = load_draft(source, model, context.ops, context.config.mmap)
    if head is None:
        text = f"{where}: no draft head (mtp.* or nextn tensors) in a model of family {model.config.architecture}"
        raise NotFound(text, hint="use --spec ngram or suffix, or a drafter of its own with --draft")
    return MtpDrafter(head, min(spec.n_max or USUAL, DEEPEST), spec.p_min)
