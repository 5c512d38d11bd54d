"""Speed of the forward pass alone: random token ids through an executor, no tokenizer, no sampling, no server.

Main flow: reserve room, fill the depth untimed, then for each repetition time the same rows again. Rows are never
committed, so every repetition runs behind exactly the same context.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from strata_engine.bench.plan import SpeedTest
from strata_engine.core.batch import Span
from strata_engine.core.sequence import Hold
from strata_engine.errors import OutOfMemory
from strata_engine.memory.memory import Memory
from strata_engine.runtime.executor import Executor

_SHORTEST_S = 1e-9  # a clock that did not move must not divide by zero


@dataclass
class Measurer:
    """Times tests on one executor. `clock` in seconds."""

    executor: Executor
    memory: Memory
    vocab_size: int
    seed: int = 7
    clock: Callable[[], float] = time.perf_counter

    def measure(self, test: SpeedTest, repetitions: int) -> Iterator[float]:
        """Tokens per second of each repetition, after one untimed run. Raises OutOfMemory: the context is too small."""
        with self._room(test.depth_tokens + test.tokens) as hold:
            self._prompt(hold, 0, test.depth_tokens)
            self._run(hold, test)
            for _ in range(repetitions):
                started = self.clock()
                self._run(hold, test)
                yield test.tokens / max(self.clock() - started, _SHORTEST_S)

    def _run(self, hold: Hold, test: SpeedTest) -> None:
        position = test.depth_tokens
        self._prompt(hold, position, test.prompt_tokens)
        position += test.prompt_tokens
        draw = random.Random(self.seed)
        for step in range(test.generate_tokens):
            self.executor.run([Span([draw.randrange(self.vocab_size)], position + step, hold.pages, 1, hold.slot)])

    def _prompt(self, hold: Hold, start: int, count: int) -> None:
        draw = random.Random(self.seed + start)
        for first in range(0, count, self.executor.limits.rows):
            size = min(self.executor.limits.rows, count - first)
            ids = [draw.randrange(self.vocab_size) for _ in range(size)]
            # Logits for the very last row only, as when a prompt is read before an answer.
            self.executor.run([Span(ids, start + first, hold.pages, int(first + size == count), hold.slot)])

    @contextmanager
    def _room(self, tokens: int) -> Iterator[Hold]:
        hold = Hold()
        most = self.executor.limits.context_tokens
        if tokens > most or not self.memory.reserve(hold, tokens):
            raise OutOfMemory(f"the test needs {tokens} tokens of context, {most} were allocated", "a smaller -d or -p")
        try:
            yield hold
        finally:
            self.memory.release(hold)
