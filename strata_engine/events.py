"""What comes up from the engine: one dataclass an event. Imports nothing of ours but errors.

A stream is: Started, then any number of Text / Reasoning / Notice, then exactly one Finish or Failed.
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
class Finish:
    """The end. `reason`: stop | length | cancelled. `stop_match`: the stop string or stop token id that ended it."""

    reason: str
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    stop_match: str | int | None = None
    tokens: tuple[Token, ...] = ()  # generated but never shown (EOS, held-back stop text)


@dataclass(frozen=True)
class Failed:
    """The sequence failed alone; the engine goes on."""

    error: LlmrunError


Event = Started | Text | Reasoning | Notice | Finish | Failed
