"""Counts rows and seconds of an engine's steps. A mixed step's time is shared by rows between prompt and decode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata_engine.runtime.scheduler import Piece


@dataclass
class Meters:
    """Totals since the engine was opened. `host_s`: time of steps outside the model (scheduling, sampling, events).

    `decode_rows`: rows after generated tokens, of drafts only those that stand.
    """

    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    decode_rows: int = 0
    prompt_s: float = 0.0
    decode_s: float = 0.0
    host_s: float = 0.0
    _prompt_share: float = 0.0

    def count(self, pieces: Sequence[Piece], ran_s: float) -> None:
        """Rows that have run, before their tokens are told: who sees the end of an answer finds it counted."""
        prompt = sum(p.count for p in pieces if p.count > 1 or p.sequence.generated == 0)
        rows = sum(p.count for p in pieces)
        self.steps += 1
        self.prompt_tokens += prompt
        self.generated_tokens += sum(p.last for p in pieces)
        self.decode_rows += rows - prompt
        self._prompt_share = prompt / rows
        self._spend(ran_s)

    def count_accepted(self, drafts: int) -> None:
        """Drafts of a sequence that stand: tokens beside the one that a row gives anyway."""
        self.generated_tokens += drafts
        self.decode_rows += drafts

    def count_host(self, host_s: float) -> None:
        """The rest of the step: scheduling, sampling, events. Spent on what the rows were for."""
        self.host_s += host_s
        self._spend(host_s)

    def _spend(self, spent_s: float) -> None:
        self.prompt_s += spent_s * self._prompt_share
        self.decode_s += spent_s * (1 - self._prompt_share)

    def speed(self) -> dict[str, float]:
        """Rates as plain numbers; 0 where nothing ran."""
        return {
            "prompt_tokens_per_s": self.prompt_tokens / self.prompt_s if self.prompt_s else 0.0,
            "decode_tokens_per_s": self.decode_rows / self.decode_s if self.decode_s else 0.0,
            "host_ms_per_step": 1000 * self.host_s / self.steps if self.steps else 0.0,
            "steps": float(self.steps),
        }
