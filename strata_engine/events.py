"""What comes up from the engine: one dataclass an event. Imports nothing of ours but errors.

A stream is: Started, then any number of Reading / Text / Reasoning / Notice, then exactly one Finish or Failed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from strata_engine.errors import LlmrunError


@dataclass(frozen=True)
class Token:
    """One generated token. `logprob` and `top` (id, logprob) come from the raw distribution; None unless asked for."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Started:
    """The sequence was accepted. `prompt_tokens` counts template tokens; `cached_tokens` of them were reused."""

    sequence_id: str
    prompt_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True)
class Reading:
    """A part of a long prompt has run, before any text: `done_tokens` of `prompt_tokens`."""

    done_tokens: int
    prompt_tokens: int


@dataclass(frozen=True)
class Text:
    """Visible answer text, whole characters only. `tokens` are those consumed since the last text-bearing event."""

    text: str
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True)
class Reasoning:
    """Thinking text, whole characters only."""

    text: str
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True)
class Notice:
    """Something the user lost or should know (ignored field, fallback). Never silent."""

    code: str
    message: str


@dataclass(frozen=True)
class Usage:
    """Token counts of one sequence. `reasoning_tokens` are part of `completion_tokens`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class Timings:
    """Seconds: waiting in the queue, running the prompt, generating; and from submit to the first token."""

    queue_s: float = 0.0
    prompt_s: float = 0.0
    decode_s: float = 0.0
    first_token_s: float = 0.0


@dataclass(frozen=True)
class Drafts:
    """What speculation did in one sequence.

    steps        decode steps after the prompt, those without drafts too
    rounds       steps that verified at least one draft
    drafted      drafts verified; accepted: drafts kept
    by_position  entry i: rounds that kept more than i drafts (their sum is `accepted`)
    plain_s      seconds the same tokens take without drafts, by plain steps measured since the model was loaded;
                 None where none was measured
    """

    steps: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    by_position: tuple[int, ...] = ()
    plain_s: float | None = None

    @property
    def rate(self) -> float:
        """Accepted of drafted, 0 to 1."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def lengths(self, generated: int) -> tuple[float, float]:
        """Accept length both ways: (n-1)/N and n/N for n generated tokens in N steps; the prompt gave the first one."""
        return max(0, generated - 1) / max(1, self.steps), generated / max(1, self.steps)

    def gain(self, decode_s: float) -> float | None:
        """How many times as fast as without drafts; None where no plain step was measured."""
        return self.plain_s / decode_s if self.plain_s is not None and decode_s > 0 else None


@dataclass(frozen=True)
class Finish:
    """The end. `reason`: stop | length | cancelled. `stop_match`: the stop string or stop token id that ended it.

    `drafts` is None where the engine does not speculate.
    """

    reason: str
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    stop_match: str | int | None = None
    tokens: tuple[Token, ...] = ()  # generated but never shown (EOS, held-back stop text)
    drafts: Drafts | None = None


@dataclass(frozen=True)
class Failed:
    """The sequence failed alone; the engine goes on."""

    error: LlmrunError


Event = Started | Reading | Text | Reasoning | Notice | Finish | Failed
