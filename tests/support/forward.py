"""Drives a model through the executor without scheduler or engine: one sequence, any chunking, logits of every row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from strata_engine.core.batch import BatchLimits, Span
from strata_engine.core.pictures import Pictures
from strata_engine.core.sequence import Hold
from strata_engine.draft.base import Wants
from strata_engine.formats.base import WeightSource
from strata_engine.memory.memory import Memory
from strata_engine.models.load import load_model
from strata_engine.runtime.executor import Executor
from strata_kernels.ops import Ops


class Runner:
    """A loaded model with room for `sequences` sequences of `context_tokens`."""

    def __init__(
        self,
        source: WeightSource,
        ops: Ops,
        kv_type: str = "f32",
        context_tokens: int = 256,
        sequences: int = 8,
        rest: str = "none",
        wants: Wants = Wants(),
        drafts: int = 0,
    ) -> None:
        self.loaded = load_model(source, ops, rest=rest)
        self.model = self.loaded.model
        pages = sequences * -(-context_tokens // 16)
        self.memory = Memory(self.model.memory(), pages, 16, kv_type, ops.zeros, sequences, drafts)
        rows = max(512, context_tokens)
        self.executor = Executor(
            self.model, ops, self.memory, BatchLimits(rows, sequences, context_tokens, rows), self.width, wants
        )

    @property
    def width(self) -> int:
        """Elements of an image token's features; 0 for a model that does not see."""
        return self.loaded.tower.config.feature_width if self.loaded.tower else 0

    def see(self, pictures: Pictures) -> Pictures:
        """Makes the features of all images."""
        for image in pictures.images:
            assert self.loaded.tower is not None and image.patches is not None
            merge = self.loaded.tower.config.pixels.merge
            image.features = self.loaded.tower.features(image.patches, (image.height * merge, image.width * merge))
        return pictures

    def span(self, hold: Hold, ids: Sequence[int], logits: int | None = None, pictures: Pictures | None = None) -> Span:
        """Room for the next ids of a sequence and the span that computes them, with logits of every row by default."""
        start = hold.tokens
        assert self.memory.reserve(hold, len(ids))
        self.memory.commit(hold, len(ids))
        sight = pictures.sight(start, len(ids), self.width) if pictures else None
        return Span(ids, start, hold.pages, len(ids) if logits is None else logits, hold.slot, sight)

    def all_logits(
        self, ids: Sequence[int], chunks: Iterable[int] | None = None, pictures: Pictures | None = None
    ) -> torch.Tensor:
        """Logits [n, V] of every position, computed in pieces of the given sizes (the last may be cut)."""
        hold, parts, at = Hold(), [], 0
        for size in chunks or [len(ids)]:
            piece = list(ids[at : at + size])
            if not piece:
                break
            parts.append(torch.from_numpy(self.executor.run([self.span(hold, piece, None, pictures)]).copy()))
            at += len(piece)
        assert at == len(ids), "the chunks do not cover the ids"
        self.memory.release(hold)
        return torch.cat(parts)


def assert_same_bits(runner: Runner, prompts: Sequence[Sequence[int]]) -> None:
    """Last-row logits of each prompt alone, token by token, and as one row among the others: the same bits."""
    alone = [runner.all_logits(p)[-1] for p in prompts]
    step_by_step = [runner.all_logits(p, [1] * len(p))[-1] for p in prompts]
    holds = [Hold() for _ in prompts]
    runner.executor.run([runner.span(h, p[:-1], 0) for h, p in zip(holds, prompts, strict=True)])
    spans = [runner.span(h, p[-1:], 1) for h, p in zip(holds, prompts, strict=True)]
    together = torch.from_numpy(runner.executor.run(spans))
    for one, two, three in zip(alone, together, step_by_step, strict=True):
        assert torch.equal(one, two) and torch.equal(one, three)
