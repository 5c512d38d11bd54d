"""A random DFlash drafter bound to a memory of its own, fed with random taps: no target runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from strata_engine.core.batch import BatchLimits
from strata_engine.core.sequence import Sequence
from strata_engine.draft.base import Ask, DraftRoom, Features, Proposal, Seen
from strata_engine.draft.dflash import DFlashDrafter
from strata_engine.memory.memory import Memory
from strata_engine.models.dflash import DFlash, load_dflash
from strata_engine.models.dflash_config import read_dflash
from strata_kernels.ops import Ops, Weight
from tests.support.dflash_oracle import TAPS, TARGET_LAYERS, VOCAB, WIDTH, Oracle, config_json, random_tensors
from tests.support.tiny_models import MemorySource

PAGE = 8


def f32_weight(matrix: torch.Tensor) -> Weight:
    rows, cols = matrix.shape
    return Weight("F32", rows, cols, matrix.contiguous().view(torch.uint8).numpy().reshape(rows, -1))


def target(seed: int = 7, **changes: Any) -> SimpleNamespace:
    """What a drafter needs of a target: its numbers, its table and its head."""
    generator = torch.Generator().manual_seed(seed)
    table, head = (torch.randn(VOCAB, WIDTH, generator=generator) for _ in range(2))
    config = SimpleNamespace(**{"width": WIDTH, "vocab_size": VOCAB, "layers": TARGET_LAYERS, **changes})
    return SimpleNamespace(config=config, table=table, head=head, ends=(f32_weight(table), f32_weight(head)))


def load(ops: Ops, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], of: Any, **given: Any) -> DFlash:
    source = MemorySource(tensors, config)
    return load_dflash(source, read_dflash(source, **given), of, ops)


@dataclass
class Case:
    """One drafter. Sequences are made of random tokens and random taps."""

    ops: Ops
    changes: dict[str, Any] = field(default_factory=dict)
    rows: int = 32
    kv_type: str = "f32"
    seed: int = 0
    p_min: float = 0.0

    def __post_init__(self) -> None:
        self.config = config_json(**self.changes)
        self.tensors, self.target = random_tensors(self.config, self.seed), target()
        self.net = load(self.ops, self.config, self.tensors, self.target)
        self.drafter = DFlashDrafter(self.net, self.net.config.drafts, self.p_min)
        self.memory = Memory(self.drafter.memory(), 64, PAGE, self.kv_type, self.ops.zeros, 4)
        self.drafter.bind(DraftRoom(self.memory.caches, self.ops, BatchLimits(self.rows, 4, 128, 32), PAGE))
        self.oracle = Oracle(self.config, self.tensors, self.target.table, self.target.head)
        self.taps: dict[str, np.ndarray] = {}

    def sequence(self, name: str, length: int, seed: int = 1) -> Sequence:
        """`length` computed tokens and an anchor; nothing is observed yet."""
        random = np.random.default_rng(seed)
        tokens = random.integers(0, VOCAB - 1, length + 1).tolist()
        self.taps[name] = random.standard_normal((length + 64, len(TAPS) * WIDTH)).astype(np.float32)
        found = Sequence(name, tokens, length, 120)
        assert self.memory.reserve(found.hold, length + 1 + self.drafter.most)
        return found

    def observe(self, sequence: Sequence, count: int) -> None:
        """The next `count` tokens were computed and are kept."""
        start = sequence.hold.tokens
        self.memory.commit(sequence.hold, count)
        taps = self.taps[sequence.id][start : start + count].copy()
        self.drafter.observe([Seen(sequence, start, count, 0)], Features(taps=taps))

    def ready(self, name: str, length: int, chunks: list[int] | None = None, seed: int = 1) -> Sequence:
        """A sequence that was observed in pieces."""
        sequence = self.sequence(name, length, seed)
        for count in chunks or [length]:
            self.observe(sequence, count)
        return sequence

    def propose(self, *sequences: Sequence, most: int | None = None) -> list[Proposal]:
        most = most or self.drafter.most
        for sequence in sequences:  # as the engine does before it asks
            assert self.memory.reserve(sequence.hold, 1 + most)
        return self.drafter.propose([Ask(s, most) for s in sequences])

    def wanted(self, sequence: Sequence, most: int | None = None) -> tuple[torch.Tensor, list[int]]:
        """The oracle's logits of the rows that guess, and its guesses."""
        count, length = most or self.drafter.most, len(sequence.tokens) - 1
        features = torch.from_numpy(self.taps[sequence.id][:length])
        from_anchor = self.net.config.from_anchor
        hidden = self.oracle.block(features, sequence.tokens[-1], count + (not from_anchor))[not from_anchor :]
        logits = hidden @ self.target.head.double().T
        if self.net.selector is not None:
            return logits, self.oracle.walk(hidden, sequence.tokens[-1])
        return logits, logits.argmax(-1).tolist()
