"""What a trained toy is judged by: exact replies, and how many tokens a round of speculation keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tests.support.toy.dflash import Blocks, Drafter, fill
from tests.support.toy.layers import logits, trunk
from tests.support.toy.mtp import drafts
from tests.support.toy.shape import Parameters, Shape


@dataclass(frozen=True)
class Held:
    """Held-out conversations: ids i64 [count, time], and which tokens are the reply, bool."""

    ids: torch.Tensor
    replies: torch.Tensor

    def some(self, count: int) -> Held:
        return Held(self.ids[:count], self.replies[:count])


@torch.no_grad()
def exact_share(p: Parameters, shape: Shape, held: Held) -> float:
    """Share of conversations whose greedy reply is the reference in every token (fed the reference so far)."""
    right = []
    for at in range(0, len(held.ids), 32):
        rows, replies = held.ids[at : at + 32], held.replies[at : at + 32, 1:]
        guess = logits(p, trunk(p, shape, rows[:, :-1])[0]).argmax(-1)
        right.append(((guess == rows[:, 1:]) | ~replies).all(1))
    return torch.cat(right).float().mean().item()


@dataclass
class Rounds:
    """Walks replies as a greedy engine would: each round keeps the right drafts and one token more."""

    drafts: int
    tokens: int = 0
    rounds: int = 0

    def walk(self, hits: torch.Tensor, reply: torch.Tensor) -> None:
        """hits bool [time, drafts]: right drafts when the token there is the newest; reply bool [time]."""
        where = reply.nonzero()
        at, last = int(where[0]), int(where[-1])
        while at < last:
            kept = 0
            while kept < self.drafts and at + kept + 1 <= last and hits[at, kept]:
                kept += 1
            at += kept + 1
            self.tokens += kept + 1
            self.rounds += 1

    @property
    def accept_length(self) -> float:
        """Tokens per round, the corrected one included."""
        return self.tokens / max(1, self.rounds)


def _walk_all(held: Held, count: int, hits_of: Callable[[torch.Tensor], torch.Tensor]) -> float:
    found = Rounds(count)
    for at in range(0, len(held.ids), 16):
        hits = hits_of(held.ids[at : at + 16])
        for row, reply in zip(hits, held.replies[at : at + 16], strict=True):
            found.walk(row, reply)
    return found.accept_length


@torch.no_grad()
def mtp_accept_length(p: Parameters, head: Parameters, shape: Shape, held: Held, count: int) -> float:
    """Accept length of `count` chained drafts on held-out replies."""

    def hits(ids: torch.Tensor) -> torch.Tensor:
        padded = F.pad(ids, (0, count + 1))
        guesses = drafts(p, head, shape, padded, trunk(p, shape, padded)[0], count)
        time = ids.shape[1]
        # Slot t has eaten token t + 1, the newest; step s guesses token t + s + 1.
        right = [logits(p, y)[:, :time].argmax(-1) == padded[:, s + 2 : s + 2 + time] for s, y in enumerate(guesses)]
        return F.pad(torch.stack(right, -1)[:, :-1], (0, 0, 1, 0))

    return _walk_all(held, count, hits)


@torch.no_grad()
def dflash_accept_length(
    p: Parameters, values: Parameters, drafter: Drafter, shape: Shape, held: Held, mask_id: int
) -> float:
    """Accept length of whole blocks on held-out replies."""
    first = int(held.replies.any(0).nonzero()[0])

    def hits(ids: torch.Tensor) -> torch.Tensor:
        time = ids.shape[1]
        padded = F.pad(ids, (0, drafter.block))
        _, taps = trunk(p, shape, padded)
        anchors = torch.arange(first, time).expand(len(ids), -1)
        rows = fill(p, values, drafter, shape, padded, taps, Blocks(anchors, mask_id))
        guess = logits(p, rows[:, :, 1:]).argmax(-1)
        wanted = torch.stack([padded[:, first + k : time + k] for k in range(1, drafter.block)], -1)
        return F.pad(guess == wanted, (0, 0, first, 0))

    return _walk_all(held, drafter.block - 1, hits)
