"""The face of the runtime for front ends: Stream, Service and their records. No torch: servers import it freely."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from strata_engine.chat import ChatRequest, TokenRequest
from strata_engine.config import EngineConfig, SamplingParams
from strata_engine.events import Event, Notice
from strata_engine.text.base import TextRules

Sink = Callable[[Event], None]


class Stream(Protocol):
    """Events of one sequence. Iterating blocks; ends after Finish; raises the error of a Failed event."""

    sequence_id: str

    def __iter__(self) -> Iterator[Event]: ...

    def close(self) -> None:
        """Cancel if still running; pages are free within one step. Safe to call twice and from any thread."""
        ...


@dataclass(frozen=True)
class Report:
    """Every choice the engine made, memory by use in bytes, speed by cause. All values are plain JSON data.

    `speculation`: method, drafters by name with what each says of itself and what it did; empty without speculation.
    """

    choices: tuple[dict[str, Any], ...] = ()
    memory: dict[str, int] = field(default_factory=dict)
    speed: dict[str, float] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    speculation: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadedModel:
    """One loaded model as `/v1/models`, `ps` and `/show info` print it."""

    name: str
    reference: str
    root: str  # source repository or path
    architecture: str
    quant: str
    parameters: int
    context_tokens: int
    train_context_tokens: int
    vocab_size: int
    max_sequences: int
    size_bytes: int
    device: str
    capabilities: tuple[str, ...]
    loaded_at: float  # seconds since the epoch
    defaults: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True)
class Load:
    """Live numbers of one engine for /metrics, /slots and ps.

    `spec_*`: rounds that verified drafts, drafts verified and kept, rounds that kept more than i drafts, decode steps
    of sequences and the tokens these steps gave; all 0 without speculation.
    """

    running: int
    waiting: int
    kv_pages_used: int
    kv_pages_total: int
    prompt_tokens_total: int
    generation_tokens_total: int
    prompt_s_total: float
    decode_s_total: float
    spec_rounds_total: int = 0
    spec_drafted_total: int = 0
    spec_accepted_total: int = 0
    spec_by_position_total: tuple[int, ...] = ()
    spec_steps_total: int = 0
    spec_tokens_total: int = 0
    prefix_query_tokens_total: int = 0  # prompt tokens looked up in the prefix cache
    prefix_hit_tokens_total: int = 0  # those of them that did not run again
    kernel_compiles_total: int = 0  # after the model was ready: 0, whatever comes


class Service(Protocol):
    """Several engines by name. Thread-safe. Front ends speak to this only."""

    def loaded(self) -> list[LoadedModel]: ...

    def load(self, model: str, config: EngineConfig | None = None) -> LoadedModel:
        """Load or find. `model`: reference, alias, path; "" = the only loaded one. Raises NotFound with near names."""
        ...

    def unload(self, model: str, timeout_s: float = 30.0) -> int:
        """Finish or cancel its sequences, free it; bytes freed."""
        ...

    def stream(
        self, model: str, request: ChatRequest | TokenRequest, params: SamplingParams, sink: Sink | None = None
    ) -> Stream:
        """Start a sequence. With `sink` events go there (called in the engine's thread, must not block)."""
        ...

    def text(self, model: str) -> TextRules: ...

    def load_numbers(self, model: str) -> Load: ...

    def report(self, model: str) -> Report: ...

    def close(self) -> None: ...
