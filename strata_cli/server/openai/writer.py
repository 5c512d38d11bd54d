"""Writer: events of one call -> the JSON objects of a stream; the same objects folded -> a plain reply.

A plain reply is made from the chunks its stream would have had, so the two cannot disagree.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from typing import Any

from strata_cli.server.openai.call import Call
from strata_cli.server.openai.labels import Labels
from strata_engine.events import Event, Finish, Notice, Reading, Reasoning, Started, Text, Usage

Chunk = dict[str, Any]


class Writer(ABC):
    """Shared part of the chat and completion writers. `model`: the name the reply carries."""

    chunk_object, reply_object, id_prefix = "", "", ""

    def __init__(self, call: Call, model: str, labels: Labels) -> None:
        self.call, self.labels = call, labels
        self.begun: set[int] = set()
        self._base = {"id": self.id_prefix + uuid.uuid4().hex, "created": int(time.time()), "model": model}
        self._finished: dict[int, Finish] = {}
        self._warnings: list[dict[str, str]] = []

    def write(self, index: int, event: Event) -> list[Chunk]:
        """Chunks of one event of sequence `index`; a Failed event is not for a writer."""
        if isinstance(event, Notice):
            notice = {"code": event.code, "message": event.message}
            if notice not in self._warnings:
                self._warnings.append(notice)
            return []
        if isinstance(event, Finish):
            self._finished[index] = event
            chunks = [self._chunk([choice]) for choice in self.last_choice(index, event)]
            chunks[-1].update(self._extras())
            return chunks
        if isinstance(event, Text | Reasoning):
            return [self._chunk([choice]) for choice in self.text_choice(index, event)]
        if isinstance(event, Started | Reading):
            return []
        raise TypeError(f"no chunk for {type(event).__name__}")

    def end(self) -> list[Chunk]:
        """After the last Finish: the usage chunk if the client asked for it."""
        return [{**self._chunk([]), "usage": self.usage()}] if self.call.include_usage else []

    def reply(self, chunks: list[Chunk]) -> dict[str, Any]:
        """The whole answer in one object."""
        body = {**self._base, "object": self.reply_object, "choices": self.fold(chunks), "usage": self.usage()}
        return {**body, **self._extras()}

    def usage(self) -> dict[str, Any]:
        """Token counts of the call: each prompt once, all answers."""
        uses = {index: finish.usage for index, finish in self._finished.items()}
        prompts = [_first(uses, number, self.call.count) for number in range(len(self.call.requests))]
        prompt = sum(use.prompt_tokens for use in prompts)
        made = sum(use.completion_tokens for use in uses.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": sum(use.cached_tokens for use in prompts)},
            "completion_tokens_details": {"reasoning_tokens": sum(use.reasoning_tokens for use in uses.values())},
        }

    def by_index(self, chunks: list[Chunk]) -> dict[int, list[dict[str, Any]]]:
        """The choice objects of each index, in order."""
        found: dict[int, list[dict[str, Any]]] = {}
        for chunk in chunks:
            for choice in chunk["choices"]:
                found.setdefault(choice["index"], []).append(choice)
        return found

    @abstractmethod
    def text_choice(self, index: int, event: Text | Reasoning) -> list[dict[str, Any]]:
        """Choice objects of a text event."""

    @abstractmethod
    def last_choice(self, index: int, event: Finish) -> list[dict[str, Any]]:
        """Choice objects of the end; the last one carries the reason."""

    @abstractmethod
    def fold(self, chunks: list[Chunk]) -> list[dict[str, Any]]:
        """Choices of the plain reply."""

    def _chunk(self, choices: list[dict[str, Any]]) -> Chunk:
        chunk = {**self._base, "object": self.chunk_object, "choices": choices}
        return {**chunk, "usage": None} if self.call.include_usage else chunk

    def _extras(self) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        if len(self.call.requests) * self.call.count == 1:
            extras["timings"] = timings(self._finished[0])
        if self._warnings:
            extras["warnings"] = list(self._warnings)
        return extras


def _first(uses: dict[int, Usage], number: int, count: int) -> Usage:
    return uses.get(number * count) or Usage()


def timings(finish: Finish) -> dict[str, Any]:
    """Counts and speeds in llama.cpp's names; the prompt's count leaves out reused tokens. `draft_*`: with drafts."""
    use, spent = finish.usage, finish.timings
    prompt = use.prompt_tokens - use.cached_tokens
    return {
        "cache_n": use.cached_tokens,
        "prompt_n": prompt,
        "prompt_ms": spent.prompt_s * 1e3,
        "prompt_per_token_ms": spent.prompt_s * 1e3 / max(prompt, 1),
        "prompt_per_second": prompt / spent.prompt_s if spent.prompt_s > 0 else 0.0,
        "predicted_n": use.completion_tokens,
        "predicted_ms": spent.decode_s * 1e3,
        "predicted_per_token_ms": spent.decode_s * 1e3 / max(use.completion_tokens, 1),
        "predicted_per_second": use.completion_tokens / spent.decode_s if spent.decode_s > 0 else 0.0,
        "queue_ms": spent.queue_s * 1e3,
        "first_token_ms": spent.first_token_s * 1e3,
        **_drafts(finish),
    }


def _drafts(finish: Finish) -> dict[str, Any]:
    """llama.cpp's two counts, and what else our own client shows."""
    found = finish.drafts
    if found is None:
        return {}
    return {
        "draft_n": found.drafted,
        "draft_n_accepted": found.accepted,
        "draft_rounds": found.rounds,
        "draft_steps": found.steps,
        "draft_by_position": list(found.by_position),
        "draft_plain_ms": None if found.plain_s is None else found.plain_s * 1e3,
    }
