"""One sequence on its way through the engine: chooser, reader, timings, and the events that go up."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from strata_engine.config import SamplingParams
from strata_engine.core.sequence import Sequence
from strata_engine.errors import LlmrunError
from strata_engine.events import Failed, Finish, Reading, Reasoning, Started, Text, Timings, Token, Usage
from strata_engine.runtime.prompt import Prompt
from strata_engine.runtime.sampler import Chooser, Top
from strata_engine.runtime.spec_meters import SequenceMeter
from strata_engine.runtime.stream import SequenceStream
from strata_engine.runtime.transforms import Floats, History
from strata_engine.text.base import ReplyReader

Rows = Floats | list[Top]  # logits f32 [n, V], or the tops of n rows


@dataclass(frozen=True)
class Advance:
    """What rows of a step gave: drafts that stand, the Finish when the sequence ends.

    `ended`: the next draft was right, but foretold the last token, whose row is not wanted.
    """

    accepted: int = 0
    finish: Finish | None = None
    ended: bool = False


@dataclass(eq=False)
class Active:
    """What the engine keeps beside a Sequence. All methods run in the engine's thread."""

    sequence: Sequence
    prompt: Prompt
    params: SamplingParams
    reader: ReplyReader
    chooser: Chooser
    stream: SequenceStream
    submitted_s: float = field(default_factory=time.perf_counter)
    scheduled_s: float = 0.0
    first_token_s: float = 0.0
    reasoning_tokens: int = 0
    spec: SequenceMeter | None = None  # where the engine speculates

    def start(self) -> None:
        """First rows are about to run (not again after a preemption)."""
        if self.scheduled_s:
            return
        self.scheduled_s = time.perf_counter()
        self.stream.put(Started(self.sequence.id, self.sequence.prompt_tokens, self.sequence.cached_tokens))
        for notice in self.prompt.notices:
            self.stream.put(notice)

    def reading(self) -> None:
        """Rows of the prompt have run and others follow (not told when a preempted answer is computed again)."""
        if not self.first_token_s:
            self.stream.put(Reading(self.sequence.hold.tokens, self.sequence.prompt_tokens))

    def advance_all(self, logits: Rows, drafts: tuple[int, ...]) -> Advance:
        """Choose token after token of 1 + drafts rows, as long as the next row's draft is the token chosen."""
        if not drafts:
            return Advance(0, self.advance(logits[0]))
        with self.stream.together():
            for row, draft in enumerate(drafts):
                finish = self.advance(logits[row])
                hit = self.sequence.tokens[-1] == draft
                if finish is not None or not hit:
                    return Advance(row, finish, ended=finish is not None and hit)
            return Advance(len(drafts), self.advance(logits[len(drafts)]))

    def advance(self, logits: Floats | Top) -> Finish | None:
        """Choose the next token and tell about it; the Finish to send when the sequence ends here."""
        sequence = self.sequence
        token = self.chooser.choose(logits, History(sequence.tokens, sequence.prompt_tokens))
        sequence.tokens.append(token.id)
        if not self.first_token_s:
            self.first_token_s = time.perf_counter()
        wanted_stop = token.id in self.params.stop_token_ids
        if wanted_stop or (token.id in self.prompt.eos and not self.params.ignore_eos):
            if wanted_stop and self.params.include_stop:
                self._send(self.reader.feed([token]))
                return self.finish("stop", token.id)
            return self.finish("stop", token.id if wanted_stop else None, token)
        self._send(self.reader.feed([token]))
        if self.reader.stopped is not None:
            return self.finish("stop", self.reader.stopped)
        if len(sequence.tokens) >= sequence.limit_tokens:
            return self.finish("length")
        return None

    def finish(self, reason: str, match: str | int | None = None, unseen: Token | None = None) -> Finish:
        """Release what the reader holds back and make the Finish. `unseen`: a token that was not fed to the reader."""
        events, rest = self.reader.close()
        self._send(events)
        if reason == "length" and self.reader.stopped is not None:  # the held-back text completed a stop string
            reason, match = "stop", self.reader.stopped
        sequence = self.sequence
        usage = Usage(sequence.prompt_tokens, sequence.generated, self.reasoning_tokens, sequence.cached_tokens)
        tokens = rest if unseen is None else (*rest, unseen)
        return Finish(reason, usage, self._timings(), match, tokens, self.spec.drafts() if self.spec else None)

    def count(self, drafted: int, gone: Advance, batch: int) -> Advance:
        """Count a decode step of `batch` sequences; its Finish, made while tokens were chosen, is told anew."""
        if self.spec is None:
            return gone
        self.spec.count(drafted, gone.accepted, batch)
        told = None if gone.finish is None else replace(gone.finish, drafts=self.spec.drafts())
        return replace(gone, finish=told)

    def fail(self, error: LlmrunError) -> None:
        """The sequence ends with an error."""
        self.stream.put(Failed(error))

    def _send(self, events: list[Text | Reasoning]) -> None:
        for event in events:
            if isinstance(event, Reasoning):
                self.reasoning_tokens += len(event.tokens)
            self.stream.put(event)

    def _timings(self) -> Timings:
        now = time.perf_counter()
        scheduled = self.scheduled_s or now
        first = self.first_token_s or now
        return Timings(
            queue_s=scheduled - self.submitted_s,
            prompt_s=max(0.0, first - scheduled),
            decode_s=now - first,
            first_token_s=self.first_token_s - self.submitted_s if self.first_token_s else 0.0,
        )
