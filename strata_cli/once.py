"""One question, one answer (or n): as text while it comes, as one JSON object, or as JSON lines of events.

The answer goes to stdout or a file; thinking, notices and statistics to stderr. Ctrl-C keeps what came and gives 130.
"""

from __future__ import annotations

import dataclasses
import os
import re
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_cli.output import Output, clean
from strata_cli.repl.render import Answer, AnswerView, collect, stats_lines
from strata_engine.chat import ChatRequest, TokenRequest
from strata_engine.config import SamplingParams
from strata_engine.errors import NotFound, RequestRefused, UsageError
from strata_engine.events import Event, Token
from strata_engine.runtime.api import LoadedModel, Service, Stream

_INTERRUPTED = 130
SCHEMA, EVENT_SCHEMA = "llmrun.run.v1", "llmrun.run.event.v1"


@dataclass(frozen=True)
class Manner:
    """How the answer is delivered.

    count          answers to the same question
    extract        print the first code block only
    strict         an answer cut by length gives exit code 11
    timeout_s      most seconds from asking to the end; None = no limit
    file           write there in place of stdout
    """

    count: int = 1
    extract: bool = False
    strict: bool = False
    stats: bool = False
    hide_thinking: bool = False
    timeout_s: float | None = None
    file: Path | None = None


@dataclass
class Once:
    """One run. `load_s`: seconds the model took to load, None when it was loaded already."""

    output: Output
    service: Service
    model: LoadedModel
    manner: Manner
    load_s: float | None = None

    def run(self, request: ChatRequest | TokenRequest, params: SamplingParams) -> tuple[list[Answer], int]:
        """Ask and deliver; the answers and the exit code. Raises the stream's error, RequestRefused on a time-out."""
        if self.manner.file is not None:
            check_writable(self.manner.file)
        streams = [self.service.stream(self.model.name, request, p) for p in seeded(params, self.manner.count)]
        try:
            with self._limited(streams) as expired:
                answers = self._deliver(streams)
        finally:
            for stream in streams:
                stream.close()
        if expired.is_set() and any(a.finish is None or a.finish.reason == "cancelled" for a in answers):
            raise RequestRefused(f"the answer was not finished in {self.manner.timeout_s:g} s", "a longer --timeout")
        return answers, self._end(answers)

    def _deliver(self, streams: list[Stream]) -> list[Answer]:
        if self.output.mode == "jsonl":
            return [self._events(index, stream) for index, stream in enumerate(streams)]
        if self.output.mode == "json":
            answers = _until_stopped(collect(stream, lambda event: None) for stream in streams)
            self._write(self._document(answers))
            return answers
        return self._texts(streams)

    def _texts(self, streams: list[Stream]) -> list[Answer]:
        answers = _until_stopped(self._text(index, stream) for index, stream in enumerate(streams))
        if self._held:
            self._write("\n---\n\n".join(map(self._kept, answers)))
        return answers

    @property
    def _held(self) -> bool:
        return self.manner.extract or self.manner.file is not None

    def _text(self, index: int, stream: Stream) -> Answer:
        if index and not self._held:
            self.output.write("\n---\n\n")
        view = AnswerView(self.output, not self.manner.hide_thinking, (lambda text: None) if self._held else None)
        try:
            return collect(stream, view.show)
        finally:
            view.end()

    def _kept(self, answer: Answer) -> str:
        text = answer.text if answer.text.endswith("\n") else answer.text + "\n"
        if not self.manner.extract:
            return text
        code = first_code_block(answer.text)
        if code is None:
            self.output.warn("there is no code block in the answer; the whole answer follows")
        return text if code is None else code

    def _events(self, index: int, stream: Stream) -> Answer:
        def show(event: Event) -> None:
            data = {"type": type(event).__name__.lower(), "index": index, **dataclasses.asdict(event)}
            self.output.data(EVENT_SCHEMA, data)

        return collect(stream, show)

    def _document(self, answers: list[Answer]) -> str:
        import json

        usages = [a.finish.usage for a in answers if a.finish]
        prompt = max((u.prompt_tokens for u in usages), default=0)
        completion = sum(u.completion_tokens for u in usages)
        reasoning = sum(u.reasoning_tokens for u in usages)
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "id": f"run-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.model.name,
            "choices": [self._choice(index, answer) for index, answer in enumerate(answers)],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
                "completion_tokens_details": {"reasoning_tokens": reasoning},
            },
            "timings": [dataclasses.asdict(a.finish.timings) for a in answers if a.finish],
            "drafts": [
                None if a.finish.drafts is None else dataclasses.asdict(a.finish.drafts) for a in answers if a.finish
            ],
            "load_s": self.load_s,
            "warnings": [dataclasses.asdict(n) for a in answers for n in a.notices],
        }
        return json.dumps(document, ensure_ascii=False, indent=2) + "\n"

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        reason = answer.finish.reason if answer.finish else "cancelled"
        choice: dict[str, Any] = {"index": index, "message": message, "finish_reason": reason}
        if answer.tokens and answer.tokens[0].logprob is not None:
            choice["logprobs"] = {"content": self._labels(answer.tokens)}
        return choice

    def _labels(self, tokens: list[Token]) -> list[dict[str, Any]]:
        from strata_cli.server.openai.labels import Labels

        labels = Labels(self.service.text(self.model.name).tokenizer)
        return [labels.entry(token) for token in tokens]

    def _write(self, text: str) -> None:
        if self.manner.file is None:
            self.output.write(text)
        else:
            write_whole(self.manner.file, text if self.output.json_mode else clean(text))

    def _end(self, answers: list[Answer]) -> int:
        if self.manner.stats:
            for answer in answers:
                for line in stats_lines(answer, self.load_s):
                    self.output.note(line)
        if len(answers) < self.manner.count or any(a.stopped for a in answers):
            return _INTERRUPTED
        cut = [a.finish.usage.completion_tokens for a in answers if a.finish and a.finish.reason == "length"]
        if cut:
            self.output.warn(f"the answer was cut at {cut[0]} tokens (--max-tokens or the context)")
        return RequestRefused.exit_code if cut and self.manner.strict else 0

    @contextmanager
    def _limited(self, streams: list[Stream]) -> Iterator[threading.Event]:
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            for stream in streams:
                stream.close()

        timer = threading.Timer(self.manner.timeout_s, expire) if self.manner.timeout_s is not None else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            yield expired
        finally:
            if timer is not None:
                timer.cancel()


def _until_stopped(answers: Iterator[Answer]) -> list[Answer]:
    found: list[Answer] = []
    for answer in answers:
        found.append(answer)
        if answer.stopped:
            break
    return found


def seeded(params: SamplingParams, count: int) -> list[SamplingParams]:
    """Parameters of n answers: a given seed counts up, so that they differ and can be repeated."""
    if params.seed is None:
        return [params] * count
    return [dataclasses.replace(params, seed=params.seed + index) for index in range(count)]


def first_code_block(text: str) -> str | None:
    """Content of the first fenced block, ending in a newline; None without one. An unclosed one ends with the text."""
    opened = re.search(r"^ {0,3}(`{3,}|~{3,})[^\n`]*\n", text, re.MULTILINE)
    if opened is None:
        return None
    closed = re.compile(rf"^ {{0,3}}{opened[1][0]}{{{len(opened[1])},}}[ \t]*$", re.MULTILINE).search(
        text, opened.end()
    )
    body = text[opened.end() : closed.start() if closed else len(text)]
    return body if body.endswith("\n") or not body else body + "\n"


def check_writable(path: Path) -> None:
    """Say before the model works that the answer cannot be kept. Raises UsageError or NotFound."""
    if path.is_dir():
        raise UsageError(f"-o {path}: is a directory", "name a file in it")
    if not path.parent.is_dir():
        raise NotFound(f"-o {path}: no such directory: {path.parent}")
    if not os.access(path.parent if not path.exists() else path, os.W_OK):
        raise UsageError(f"-o {path}: may not be written", "another place")


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step; devices and pipes (/dev/stdout) are written through."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
