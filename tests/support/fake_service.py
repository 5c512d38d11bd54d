"""A Service with a real queue and batch but no model: every sequence says what a script makes of its request.

Tokens are bytes (ids 0..255), `word ` (259) and three control tokens; stop strings and the thinking split are the
engine's own. Scripts may hold Fault steps; a Gate stops all generation until it is opened.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata_engine.chat import ChatRequest, TokenRequest
from strata_engine.config import EngineConfig, SamplingParams
from strata_engine.errors import ContextExceeded, LlmrunError, NotFound, QueueFull, RequestRefused
from strata_engine.events import Drafts, Failed, Finish, Started, Text, Timings, Token, Usage
from strata_engine.runtime.api import Load, LoadedModel, Report, Sink
from strata_engine.text.base import Rendered, TextRules
from strata_engine.text.reader import StreamReader
from strata_engine.text.reasoning import ThinkSplitter
from strata_engine.text.stop import StopFilter

END, BOS, TURN, WORD, VOCABULARY = 256, 257, 258, 259, 300
_SPELLED = {END: b"<|im_end|>", BOS: b"<|endoftext|>", TURN: b"<|im_start|>", WORD: b"word "}


@dataclass(frozen=True)
class Fault:
    """A script step that fails the sequence."""

    error: LlmrunError


Step = int | Fault
Script = Callable[[Any, SamplingParams], Iterable[Step]]


class ByteTokenizer:
    """Ids are bytes, so every split of a character over tokens happens."""

    vocab_size, bos_id, eos_ids, add_bos = VOCABULARY, BOS, frozenset((END,)), False

    def encode(self, text: str, special: bool = False) -> list[int]:
        data, ids = text.encode(), []
        spelled = _SPELLED.items() if special else [(WORD, b"word ")]
        while data:
            found = next(((i, s) for i, s in spelled if data.startswith(s)), (data[0], data[:1]))
            ids.append(found[0])
            data = data[len(found[1]) :]
        return ids

    def piece(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else _SPELLED.get(token_id, b"<pad>")

    def is_control(self, token_id: int) -> bool:
        return token_id in (END, BOS, TURN)

    def decode(self, ids: Sequence[int], control: bool = True) -> str:
        return b"".join(self.piece(i) for i in ids if control or not self.is_control(i)).decode("utf-8", "replace")


class ByteChat:
    """`<|im_start|>role` newline text `<|im_end|>`; message text never becomes a control token."""

    def render(self, request: ChatRequest) -> Rendered:
        tokenizer, ids = ByteTokenizer(), []
        for message in request.messages:
            ids += [TURN, *tokenizer.encode(f"{message.role}\n{message.text}"), END]
        ids = ids[:-1] if request.continue_final else [*ids, TURN, *tokenizer.encode("assistant\n")]
        state = "maybe-thinking" if request.thinking else "answer"
        return Rendered(tuple(ids), tokenizer.decode(ids), frozenset((END,)), state)

    def reader(self, state: str, stop: Sequence[str] = (), include_stop: bool = False) -> StreamReader:
        return make_reader(state, stop, include_stop)


def make_reader(state: str, stop: Sequence[str], include_stop: bool) -> StreamReader:
    tokenizer = ByteTokenizer()
    splitter = ThinkSplitter(state, tags=state != "answer")
    return StreamReader(tokenizer.piece, tokenizer.is_control, splitter, StopFilter(stop, include_stop))


class IdReader:
    """Without a tokenizer every token leaves at once, as an empty text."""

    stopped: str | None = None

    def feed(self, tokens: Sequence[Token]) -> list[Any]:
        return [Text("", (token,)) for token in tokens]

    def close(self) -> tuple[list[Any], tuple[Token, ...]]:
        return [], ()


def say(text: str) -> list[Step]:
    """Steps that write a text and end."""
    return [*text.encode(), END]


def echo_script(request: Any, params: SamplingParams) -> Iterable[Step]:
    """Writes the last user text after its first colon; counts without end when asked to count."""
    text = request.messages[-1].text if isinstance(request, ChatRequest) else (request.text or "tokens")
    if text.startswith("Count"):
        return (byte for number in itertools.count(1) for byte in f"{number} ".encode())
    return say(text.partition(": ")[2] or text)


def endless(request: Any, params: SamplingParams) -> Iterable[Step]:
    """Never ends by itself."""
    return itertools.repeat(ord("a"))


@dataclass(eq=False)
class _Sequence:
    id: str
    prompt_tokens: int
    params: SamplingParams
    steps: Any
    reader: Any
    emit: Sink
    limit: int
    submitted: float = field(default_factory=time.perf_counter)
    made: int = 0
    cancelled: bool = False
    drafts: Drafts | None = None

    def finish(self, reason: str, match: str | int | None = None, tokens: tuple[Token, ...] = ()) -> None:
        events, rest = self.reader.close()
        for event in events:
            self.emit(event)
        usage = Usage(self.prompt_tokens, self.made, 0, 0)
        spent = time.perf_counter() - self.submitted
        self.emit(Finish(reason, usage, Timings(0.0, 0.001, spent, spent), match, (*rest, *tokens), self.drafts))

    def step(self) -> bool:
        """One token; True when the sequence has ended."""
        step = next(self.steps, END)
        if isinstance(step, Fault):
            self.emit(Failed(step.error))
            return True
        token = self._token(step)
        self.made += 1
        if step in self.params.stop_token_ids or (step == END and not self.params.ignore_eos):
            self.finish("stop", step if step in self.params.stop_token_ids else None, (token,))
            return True
        for event in self.reader.feed([token]):
            self.emit(event)
        if self.reader.stopped is not None:
            self.finish("stop", self.reader.stopped)
            return True
        if self.made >= self.limit:
            self.finish("length")
            return True
        return False

    def _token(self, step: int) -> Token:
        if self.params.logprobs is None:
            return Token(step)
        top = tuple(((step + k) % VOCABULARY, -0.5 - k) for k in range(self.params.logprobs))
        return Token(step, -0.5, top)


class _Stream:
    def __init__(self, service: FakeService, sequence: _Sequence) -> None:
        self._service, self._sequence = service, sequence
        self.sequence_id = sequence.id

    def __iter__(self) -> Any:
        raise NotImplementedError("the fake sends to a sink")

    def close(self) -> None:
        self._service.cancel(self._sequence)


class FakeService:
    """One engine thread for all models. `gate` cleared = nothing moves; `pace_s` is the time of one step."""

    def __init__(
        self, script: Script = echo_script, names: Sequence[str] = ("tiny",), max_sequences: int = 4,
        max_queue: int = 64, context: int = 512, tokenizer: bool = True, pace_s: float = 0.0,
        load_gate: threading.Event | None = None,
    ) -> None:  # fmt: skip
        self.script, self.context, self.tokenizer, self.pace_s = script, context, tokenizer, pace_s
        self.max_sequences, self.max_queue = max_sequences, max_queue
        self.gate, self.load_gate = threading.Event(), load_gate
        self.gate.set()
        self.known, self.models = tuple(names), {}
        self.waiting: list[_Sequence] = []
        self.running: list[_Sequence] = []
        self.params: list[SamplingParams] = []
        self.requests: list[Any] = []
        self.steps = 0
        self.unloaded: list[str] = []
        self.drafts: Drafts | None = None  # what every sequence says of its speculation
        self._numbers, self._ended = itertools.count(), False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="fake engine", daemon=True)
        self._thread.start()

    # -- the Service face --

    def loaded(self) -> list[LoadedModel]:
        return list(self.models.values())

    def load(self, model: str, config: EngineConfig | None = None) -> LoadedModel:
        if model not in self.known:
            raise NotFound(f"no model named {model!r}")
        if self.load_gate is not None:
            self.load_gate.wait(30)
        if model not in self.models:
            defaults = SamplingParams(temperature=0.5, stop=())
            self.models[model] = LoadedModel(
                model, model, f"user/{model}", "llama", "Q8_0", 1000, self.context, 2048, VOCABULARY,
                self.max_sequences, 4096, "cpu", ("completion", "chat"), 1.0, defaults,
            )  # fmt: skip
        return self.models[model]

    def unload(self, model: str, timeout_s: float = 30.0) -> int:
        self.unloaded.append(model)
        for sequence in [*self.waiting, *self.running]:
            self.cancel(sequence)
        return self.models.pop(model).size_bytes

    def text(self, model: str) -> TextRules:
        return TextRules(ByteTokenizer(), ByteChat(), "{{ messages }}") if self.tokenizer else TextRules(None, None)

    def load_numbers(self, model: str) -> Load:
        spec = self.drafts or Drafts()
        counts = (spec.rounds, spec.drafted, spec.accepted, spec.by_position, spec.steps, spec.steps + spec.accepted)
        return Load(len(self.running), len(self.waiting), len(self.running), 100, 7, self.steps, 0.5, 1.5, *counts)

    def report(self, model: str) -> Report:
        return Report(({"what": "kernels", "choice": "fake"},), {"weights": 4096}, {})

    def stream(
        self, model: str, request: ChatRequest | TokenRequest, params: SamplingParams, sink: Sink | None = None
    ) -> _Stream:
        if model not in self.models:
            raise NotFound(f"{model} is not loaded")
        if sink is None:
            raise ValueError("the fake sends to a sink")
        ids, reader = self._prompt(request, params)
        if len(ids) >= self.context:
            details = {"n_prompt_tokens": len(ids), "n_ctx": self.context}
            raise ContextExceeded(f"the prompt has {len(ids)} tokens, the context {self.context}", "--ctx", details)
        limit = min(params.max_tokens or self.context, self.context - len(ids))
        number = f"s{next(self._numbers)}"
        sequence = _Sequence(
            number, len(ids), params, iter(self.script(request, params)), reader, sink, limit, drafts=self.drafts
        )
        with self._change:
            if len(self.waiting) >= self.max_queue:
                raise QueueFull("the queue is full", "", {"waiting": len(self.waiting), "max_queue": self.max_queue})
            self.waiting.append(sequence)
            self.requests.append(request)
            self.params.append(params)
            self._change.notify_all()
        return _Stream(self, sequence)

    def close(self) -> None:
        with self._change:
            self._ended = True
            self._change.notify_all()
        self._thread.join(10)

    # -- for tests --

    def reset(self) -> None:
        """As new, for the next test."""
        self.models.clear()
        self.script, self.max_queue, self.pace_s = echo_script, 64, 0.0
        self.params.clear()
        self.requests.clear()
        self.open()

    def cancel(self, sequence: _Sequence) -> None:
        with self._change:
            sequence.cancelled = True
            self._change.notify_all()

    def wait_until(self, true: Callable[[FakeService], bool], timeout_s: float = 10.0) -> None:
        """Block until something holds; raises TimeoutError."""
        with self._change:
            if not self._change.wait_for(lambda: true(self), timeout_s):
                raise TimeoutError(f"running {len(self.running)} waiting {len(self.waiting)}")

    def open(self) -> None:
        """Let generation go on."""
        with self._change:
            self.gate.set()
            self._change.notify_all()

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    # -- engine --

    def _prompt(self, request: ChatRequest | TokenRequest, params: SamplingParams) -> tuple[Sequence[int], Any]:
        if isinstance(request, ChatRequest):
            if not self.tokenizer:
                raise RequestRefused("the model has no tokenizer, so it cannot chat")
            rendered = ByteChat().render(request)
            return rendered.ids, make_reader(rendered.state, params.stop, params.include_stop)
        if request.ids is not None:
            reader = make_reader("answer", params.stop, params.include_stop) if self.tokenizer else IdReader()
            return request.ids, reader
        ids = ByteTokenizer().encode(request.text or "", True)
        return ids or [BOS], make_reader("answer", params.stop, params.include_stop)

    def _loop(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(self._can_move)
                if self._ended:
                    return
                gone = [s for s in [*self.waiting, *self.running] if s.cancelled]
                self.waiting = [s for s in self.waiting if not s.cancelled]
                self.running = [s for s in self.running if not s.cancelled]
                started = []
                while self.waiting and len(self.running) < self.max_sequences:
                    started.append(self.waiting.pop(0))
                    self.running.append(started[-1])
            for sequence in gone:
                sequence.finish("cancelled")
            for sequence in started:
                sequence.emit(Started(sequence.id, sequence.prompt_tokens))
            if self.gate.is_set():
                self._step()
            with self._change:
                self._change.notify_all()

    def _can_move(self) -> bool:
        cancelled = any(s.cancelled for s in [*self.waiting, *self.running])
        room = bool(self.waiting) and len(self.running) < self.max_sequences
        return self._ended or cancelled or room or (bool(self.running) and self.gate.is_set())

    def _step(self) -> None:
        if self.pace_s:
            time.sleep(self.pace_s)  # the speed of the pretended engine
        done = [sequence for sequence in self.running if sequence.step()]
        self.steps += 1
        with self._change:
            self.running = [s for s in self.running if s not in done]
