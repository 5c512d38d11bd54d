"""A Service that answers from a script, for front-end tests: no model, no torch. Events are the real classes.

Each answer is a list of events, or an error to raise; an exception class in the list is raised there (Ctrl-C).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from strata_engine.chat import ChatRequest, TokenRequest
from strata_engine.config import SamplingParams
from strata_engine.errors import NotFound
from strata_engine.events import Drafts, Finish, Started, Text, Timings, Usage
from strata_engine.runtime.api import Load, LoadedModel, Report
from strata_engine.text.base import TextRules


def loaded(name: str = "tiny", context_tokens: int = 1000) -> LoadedModel:
    """A plausible loaded model."""
    return LoadedModel(
        name=name,
        reference=name,
        root=f"user/{name}",
        architecture="llama",
        quant="Q8_0",
        parameters=1_000_000,
        context_tokens=context_tokens,
        train_context_tokens=2048,
        vocab_size=300,
        max_sequences=4,
        size_bytes=1_100_000,
        device="cpu",
        capabilities=("chat",),
        loaded_at=0.0,
    )


def answer(
    *texts: str, reason: str = "stop", prompt_tokens: int = 10, tokens: int = 3, drafts: Drafts | None = None
) -> list[Any]:
    """Started, the texts, Finish."""
    usage = Usage(prompt_tokens, tokens)
    times = Timings(prompt_s=0.1, decode_s=0.5, first_token_s=0.12)
    return [Started("s", prompt_tokens), *map(Text, texts), Finish(reason, usage, times, drafts=drafts)]


class ScriptedStream:
    """Plays one answer."""

    sequence_id = "s"

    def __init__(self, script: Iterable[Any]) -> None:
        self._script = script
        self.closed = False

    def __iter__(self) -> Iterator[Any]:
        for event in self._script:
            if isinstance(event, type) or isinstance(event, BaseException):
                raise event
            yield event

    def close(self) -> None:
        self.closed = True


class ScriptedService:
    """Answers in order; keeps every request. Unknown model names raise NotFound."""

    def __init__(self, *answers: Any, model: LoadedModel | None = None, known: Iterable[str] = ()) -> None:
        self.answers = list(answers)
        self.model = model or loaded()
        self.known = {self.model.name, *known}
        self.requests: list[Any] = []
        self.params: list[SamplingParams] = []
        self.streams: list[ScriptedStream] = []
        self.closed = False
        self.speculation: dict[str, Any] = {}

    def loaded(self) -> list[LoadedModel]:
        return [self.model]

    def load(self, model: str, config: Any = None) -> LoadedModel:
        if model not in self.known:
            raise NotFound(f"no model named {model!r}")
        self.model = loaded(model)
        return self.model

    def unload(self, model: str, timeout_s: float = 30.0) -> int:
        return self.model.size_bytes

    def stream(
        self, model: str, request: ChatRequest | TokenRequest, params: SamplingParams, sink: Any = None
    ) -> ScriptedStream:
        self.requests.append(request)
        self.params.append(params)
        script = self.answers.pop(0) if self.answers else answer("ok")
        if isinstance(script, Exception):
            raise script
        self.streams.append(ScriptedStream(script))
        return self.streams[-1]

    def text(self, model: str) -> TextRules:
        return TextRules(None, None, template_source="{{ messages }}")

    def load_numbers(self, model: str) -> Load:
        return Load(0, 0, 0, 10, 0, 0, 0.0, 0.0)

    def report(self, model: str) -> Report:
        return Report(speculation=self.speculation)

    def close(self) -> None:
        self.closed = True
