"""Training rows: conversations and prose packed into rows of one length, each token with a weight in the loss."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from tokenizers import Tokenizer

from tests.support.toy.sums import turn
from tests.support.toy.vocabulary import END

REPLY, PROSE, CONTEXT = 1.0, 0.5, 0.1  # weights in the loss


@dataclass
class Rows:
    """Batches by number: batch k is the same whenever it is drawn, so a resumed run sees what the first one would."""

    tokenizer: Tokenizer
    prose: Sequence[str]
    seed: int
    length: int = 256
    prose_share: float = 0.1
    _ids: dict[str, list[int]] = field(default_factory=dict)
    _prose: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for paragraph in self.prose:
            self._prose += [*self.tokenizer.encode(paragraph).ids, self.end]

    @property
    def end(self) -> int:
        return self.tokenizer.token_to_id(END)

    def batch(self, number: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and weights, i64 and f32 [count, length + 1]."""
        rng = random.Random(f"{self.seed}:{number}")
        rows = [self._row(rng) for _ in range(count)]
        return torch.tensor([ids for ids, _ in rows]), torch.tensor([weights for _, weights in rows])

    def _row(self, rng: random.Random) -> tuple[list[int], list[float]]:
        size = self.length + 1
        if rng.random() < self.prose_share:
            at = rng.randrange(len(self._prose) - size)
            return self._prose[at : at + size], [PROSE] * size
        ids: list[int] = []
        weights: list[float] = []
        while len(ids) < size:
            drawn = turn(rng, of_test=False)
            gap = "\n" if rng.random() < 0.5 else ""
            for text, weight in ((drawn.prompt, CONTEXT), (drawn.reply, REPLY), (gap + END, CONTEXT)):
                piece = self._encode(text)
                ids += piece
                weights += [weight] * len(piece)
        return ids[:size], weights[:size]

    def _encode(self, text: str) -> list[int]:
        if text not in self._ids:
            if len(self._ids) > 20_000:
                self._ids.clear()
            self._ids[text] = self.tokenizer.encode(text).ids
        return self._ids[text]


def held_out_rows(tokenizer: Tokenizer, count: int, seed: int = 99) -> tuple[torch.Tensor, torch.Tensor]:
    """Held-out conversations: ids i64 [count, longest] filled up with END, and which tokens are the reply, bool."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        drawn = turn(rng, of_test=True)
        rows.append((tokenizer.encode(drawn.prompt).ids, tokenizer.encode(drawn.reply).ids))
    longest = max(len(prompt) + len(reply) for prompt, reply in rows)
    end = tokenizer.token_to_id(END)
    ids = torch.full((count, longest), end)
    replies = torch.zeros(count, longest, dtype=torch.bool)
    for row, (prompt, reply) in enumerate(rows):
        size = len(prompt) + len(reply)
        ids[row, :size] = torch.tensor(prompt + reply)
        replies[row, len(prompt) : size] = True
    return ids, replies
