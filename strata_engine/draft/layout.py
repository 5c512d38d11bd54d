"""Does a drafter's layout hold? The first long prompt tells: its tokens are guessed at some places, both ways.

Drafters of two layouts differ in which token a row guesses (dflash_config.py), many configs do not say which they are,
and a wrong one shows in nothing but in guesses that are never right. So where the prompt's own tokens agree clearly
better with the other layout, that is said.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from strata_engine.core.sequence import Sequence as TokenSequence
from strata_engine.models.dflash_config import DFlashConfig

LEAST_TOKENS = 64  # of a prompt that is tried
PROBES = 8  # blocks run for it, once in the life of a drafter
LEAST_HITS = 6  # of the other layout, or chance may have made them
CLEARLY = 2


class Layouts:
    """Counts of both layouts: A, row i guesses its own position; B, the one after."""

    def __init__(self, config: DFlashConfig) -> None:
        self._config = config
        self.done = False
        self.tried = 0
        self.hits = {"A": 0, "B": 0}

    def wants(self, sequence: TokenSequence, unread: int) -> bool:
        """Should this one be tried? Its prompt is long and has not been read."""
        return not self.done and min(sequence.prompt_tokens, unread) >= LEAST_TOKENS

    def anchors(self, start: int, end: int) -> list[int]:
        """Positions to guess from, between the first and the last token that waits; ends the trial."""
        self.done = True
        first, last = start + LEAST_TOKENS // 4, end - self._config.block - 1
        return sorted({int(at) for at in np.linspace(first, last, PROBES)}) if last > first else []

    def count(self, tokens: Sequence[int], anchor: int, best: NDArray[np.int32]) -> None:
        """`best` [block]: what each row of the block at `anchor` guesses."""
        size = len(best)
        self.tried += size - 1
        self.hits["A"] += int(np.sum(best[1:] == tokens[anchor + 1 : anchor + size]))
        self.hits["B"] += int(np.sum(best[:-1] == tokens[anchor + 1 : anchor + size]))

    def notes(self) -> list[str]:
        """What to say of it."""
        own, other = self._config.layout, "A" if self._config.from_anchor else "B"
        if self.hits[other] < LEAST_HITS or self.hits[other] < CLEARLY * self.hits[own]:
            return []
        key = str(not self._config.from_anchor).lower()
        return [
            f"the drafter's layout is taken as {own} ({self._config.layout_from}), but of {self.tried} tokens of a "
            f"prompt it guessed {self.hits[own]} that way and {self.hits[other]} the other way: "
            f'set "sample_from_anchor": {key} in its config.json'
        ]
