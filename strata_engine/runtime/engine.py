"""Engine: one loaded model and the thread that runs its sequences.

submit() may be called from any thread: it renders and checks there, then hands the sequence to the scheduler under one
lock. The loop takes the lock only to choose work; events leave from the loop's thread. A sequence that goes wrong fails
alone, and the loop goes on.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from strata_backends.base import Backend
from strata_engine.chat import ChatRequest, TokenRequest
from strata_engine.config import EngineConfig, SamplingParams
from strata_engine.core.batch import Span
from strata_engine.core.sequence import Sequence as TokenSequence
from strata_engine.errors import LlmrunError, NotFound
from strata_engine.events import Finish, Notice
from strata_engine.models.load import Progress
from strata_engine.registry.files import ModelFiles
from strata_engine.runtime.active import Active, Rows
from strata_engine.runtime.api import Load, Report, Sink
from strata_engine.runtime.attempt import attempt
from strata_engine.runtime.meters import Meters
from strata_engine.runtime.opening import Opened, open_parts
from strata_engine.runtime.prompt import Limits, make_prompt, make_reader
from strata_engine.runtime.replay import VERIFIED, make_replay
from strata_engine.runtime.report import make_report
from strata_engine.runtime.sampler import Chooser, check_params
from strata_engine.runtime.scheduler import Piece, Work
from strata_engine.runtime.spec_meters import SequenceMeter
from strata_engine.runtime.speculation import Verdict
from strata_engine.runtime.stream import SequenceStream


class Engine:
    """Runs sequences of one model. Close it when done; it is a context manager."""

    def __init__(self, parts: Opened) -> None:
        self.parts = parts
        self._scheduler = parts.scheduler
        self._meters = Meters()
        self._spec = parts.speculation
        self._active: dict[str, Active] = {}
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._main, name=f"engine {parts.files.name}", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls, files: ModelFiles, config: EngineConfig, backend: Backend, progress: Progress | None = None
    ) -> Engine:
        """Load a model and start its thread. Raises CorruptFile, UsageError, OutOfMemory, DeviceError, NotFound."""
        return cls(open_parts(files, config, backend, progress))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self, request: ChatRequest | TokenRequest, params: SamplingParams, sink: Sink | None = None
    ) -> SequenceStream:
        """Start a sequence. Raises RequestRefused, ContextExceeded, QueueFull; later faults come as Failed events."""
        parts = self.parts
        check_params(params, self.vocab_size)
        limits = Limits(parts.eos, self.vocab_size, self.context_tokens)
        prompt = make_prompt(request, parts.rules, limits, parts.eye)
        reader = make_reader(prompt, parts.rules, params)
        limit = self.context_tokens
        if params.max_tokens is not None:
            limit = min(limit, len(prompt.ids) + params.max_tokens)
        sequence = TokenSequence(f"seq-{secrets.token_hex(8)}", list(prompt.ids), len(prompt.ids), limit)
        sequence.pictures, sequence.speculate = prompt.pictures, params.speculate
        stream = SequenceStream(sequence.id, self.cancel, sink)
        active = Active(sequence, prompt, params, reader, Chooser(params, prompt.eos), stream)
        active.spec = SequenceMeter(self._spec.meter.plain_s) if self._spec.meter else None
        with self._wake:
            if self._closing:
                raise NotFound(f"model {parts.files.name} is being unloaded", hint="load it again")
            self._scheduler.add(sequence)
            self._active[sequence.id] = active
            self._wake.notify()
        return stream

    def cancel(self, sequence_id: str) -> bool:
        """Stop a sequence before its next step. False when it has ended."""
        with self._wake:
            found = self._scheduler.cancel(sequence_id)
            self._wake.notify()
        return found

    def close(self, timeout_s: float = 0.0) -> None:
        """Let sequences finish for up to `timeout_s`, cancel the rest, end the thread, give the files up."""
        deadline = time.monotonic() + timeout_s
        with self._wake:
            self._wake.wait_for(lambda: not self._active, max(0.0, deadline - time.monotonic()))
            self._closing = True
            self._wake.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self.parts.source.close()

    @property
    def vocab_size(self) -> int:
        """Rows of the output head."""
        return self.parts.loaded.model.config.vocab_size

    @property
    def context_tokens(self) -> int:
        """Longest sequence."""
        return self.parts.priced.context_tokens

    def report(self) -> Report:
        """Every choice made and why, memory by use, speed so far."""
        with self._wake:
            return make_report(self.parts, self._meters, self._spec)

    def load_numbers(self) -> Load:
        """Live numbers for metrics."""
        with self._wake:
            pool, meters = self.parts.memory.pool, self._meters
            counts = self.parts.memory.prefix_counts
            return Load(
                running=self._scheduler.running,
                waiting=self._scheduler.waiting,
                kv_pages_used=pool.used,
                kv_pages_total=pool.total,
                prompt_tokens_total=meters.prompt_tokens,
                generation_tokens_total=meters.generated_tokens,
                prompt_s_total=meters.prompt_s,
                decode_s_total=meters.decode_s,
                prefix_query_tokens_total=counts.asked_tokens,
                prefix_hit_tokens_total=counts.found_tokens,
                kernel_compiles_total=self.parts.executor.compiles,
                **(self._spec.meter.totals() if self._spec.meter else {}),
            )

    def check(self) -> None:
        """Compare pages with sequences. Raises CacheCorrupt; for tests and idle moments."""
        with self._wake:
            self.parts.memory.check(s.hold for s in self._scheduler.sequences())

    def _main(self) -> None:
        try:
            self._spec.prepare_first(self.parts.executor.prepare)
            self._loop()
        finally:
            # empty after a normal end; after a bug of ours nobody may wait for ever
            for active in list(self._active.values()):
                attempt(active.fail, LlmrunError("the engine stopped unexpectedly", hint="please report this"))
            self._active.clear()
            self._closing = True

    def _loop(self) -> None:
        while True:
            self._prepare()
            with self._wake:
                self._wake.wait_for(lambda: self._scheduler.busy or self._closing)
                if self._closing:
                    for sequence in self._scheduler.sequences():
                        sequence.cancelled = True
                cancelled = self._scheduler.take_cancelled()
                work = self._scheduler.next()
            for sequence in cancelled:
                self._end(self._active[sequence.id], lambda active: active.finish("cancelled"))
            if work is not None:
                self._step(work)
            elif self._closing:
                return

    def _prepare(self) -> None:
        """Record what drafts will need, after a first answer and as long as nobody asks for anything else."""
        while self._spec.expects_more:
            with self._wake:
                if self._scheduler.busy or self._closing or not self._meters.generated_tokens:
                    return
            self._spec.prepare_next(self.parts.executor.prepare)

    def _step(self, work: Work) -> None:
        begun = time.perf_counter()
        for sequence in work.preempted:
            self._spec.forget(sequence.id)
        for sequence in work.impossible:
            self._fail(self._active[sequence.id], self._scheduler.too_large(sequence))
        actives = [self._active[piece.sequence.id] for piece in work.pieces]
        for active in actives:
            self._guarded(active, active.start)
        pieces = self._looked([p for p in work.pieces if p.sequence.id in self._active])
        ran_s = self._compute(self._spec.extend(pieces, self._make_room) if self._spec.active else pieces)
        self._tell_notices()
        self._meters.count_host(time.perf_counter() - begun - ran_s)

    def _make_room(self, decoding: Sequence[Piece], most: int, rows: int) -> list[int]:
        with self._wake:
            return self._scheduler.make_room(decoding, most, rows)

    def _tell_notices(self) -> None:
        for notice in self._spec.take_notices():
            for active in list(self._active.values()):
                self._guarded(active, active.stream.put, notice)

    def _looked(self, pieces: list[Piece]) -> list[Piece]:
        """Beside others that can go on, a prompt waits for its images: one is made a step, of the first such prompt."""
        blind = [piece for piece in pieces if self._sees_new(piece)]
        if self.parts.eye is None or not blind or len(blind) == len(pieces):
            return pieces
        first, held = blind[0].sequence, {piece.sequence.id for piece in blind}
        assert first.pictures is not None
        ready, error = attempt(self.parts.eye.look, first.pictures, first.hold.tokens, blind[0].count)
        if error is not None:
            self._fail(self._active[first.id], error)
        elif ready:
            held.remove(first.id)
        return [piece for piece in pieces if piece.sequence.id not in held]

    @staticmethod
    def _sees_new(piece: Piece) -> bool:
        """Do its rows see an image whose features are not made yet?"""
        pictures, start = piece.sequence.pictures, piece.sequence.hold.tokens
        return pictures is not None and any(i.features is None for i in pictures.within(start, piece.count))

    def _compute(self, pieces: list[Piece], again: bool = False) -> float:
        """Run the rows and let each sequence go on; seconds spent in the model.

        A failing batch is run again one by one, and without drafts.
        """
        if not pieces:
            return 0.0
        begun, recorded_s = time.perf_counter(), self.parts.executor.recorded_s
        logits, error = attempt(self._run, pieces, again)
        ran_s = time.perf_counter() - begun
        if error is not None:
            self._spec.drop()
            if len(pieces) > 1 or pieces[0].drafts:
                return sum(self._compute([replace(piece, drafts=())], again=True) for piece in pieces)
            self._fail(self._active[pieces[0].sequence.id], error)
            return ran_s
        with self._wake:
            self._scheduler.done(pieces)
            self._meters.count(pieces, ran_s)
        verdicts, row = [], 0
        for piece in pieces:
            end = row + piece.logits
            verdicts.append(self._advance(piece, logits[row:end]))
            row = end
        if self._spec.active:
            rows = sum(piece.rows for piece in pieces)
            recording_s = self.parts.executor.recorded_s - recorded_s
            self._spec.settle(verdicts, self.parts.executor.features(rows), time.perf_counter() - begun, recording_s)
        for piece in pieces:
            if not piece.last and piece.sequence.id in self._active:
                self._guarded(self._active[piece.sequence.id], self._active[piece.sequence.id].reading)
        for verdict in verdicts:  # whoever hears of an end finds all counted
            if verdict.finish is not None:
                self._finish(verdict.piece, verdict.finish)
        return ran_s

    def _run(self, pieces: Sequence[Piece], again: bool) -> Rows:
        """Logits of the rows, or their tops where that is all anyone needs.

        `again`: a failed step may have run some of them, so a state must be made anew.
        """
        if again and self.parts.memory.recurrent:
            for piece in pieces:
                self._restore(piece.sequence)
        spans, executor = [self._span(piece, piece.sequence.hold.tokens) for piece in pieces], self.parts.executor
        if executor.finds_tops and all(self._active[p.sequence.id].chooser.tops for p in pieces if p.last):
            return executor.run_tops(spans)
        return executor.run(spans)

    def _span(self, piece: Piece, start: int) -> Span:
        """The rows of a piece from token `start`; makes the features of the images in them."""
        sequence, hold = piece.sequence, piece.sequence.hold
        pictures, eye = sequence.pictures, self.parts.eye
        sight = eye.sight(pictures, start, piece.rows) if eye and pictures else None
        ids = [*sequence.tokens[start : start + piece.count], *piece.drafts]
        keep = piece.count if piece.drafts else None
        return Span(ids, start, hold.pages, piece.logits, hold.slot, sight, keep, hold.fold)

    def _restore(self, sequence: TokenSequence) -> None:
        """Bring a recurrent state back to the committed tokens: their rows run again, to the same bits."""
        hold, most = sequence.hold, self.parts.executor.limits.rows
        self.parts.memory.unfold(hold)
        for start in range(0, hold.tokens, most):
            piece = Piece(sequence, min(most, hold.tokens - start), last=False)
            self.parts.executor.run([self._span(piece, start)])

    def _advance(self, piece: Piece, logits: Rows) -> Verdict:
        """Let a sequence choose what its rows allow: only the rows of tokens that stand are kept."""
        if not piece.last:
            return Verdict(piece)
        active, decodes = self._active[piece.sequence.id], piece.decodes
        gone, error = attempt(active.advance_all, logits, piece.drafts)
        if error is not None:
            # what made it fail may sit in its pages (a NaN does): nobody may inherit that
            self.parts.memory.clear(active.sequence)
            self._fail(active, error)
            return Verdict(piece, ended=True, alive=False)
        if decodes:
            gone = active.count(len(piece.drafts), gone, self._spec.batch)
        if piece.room:
            with self._wake:
                self._scheduler.keep(piece, gone.accepted)
                self._meters.count_accepted(gone.accepted)
        return Verdict(piece, gone.accepted, gone.ended, gone.finish is None, gone.finish)

    def _finish(self, piece: Piece, told: Finish) -> None:
        active = self._active[piece.sequence.id]
        if not self._verified(active, told):
            self._end(active, lambda _: told)

    def _verified(self, active: Active, told: Finish) -> bool:
        """Run an answer again without drafts, where that is asked for; its Finish waits."""
        if not self.parts.config.spec.verify or active.spec is None:
            return False
        if not active.spec.tally.rounds:
            attempt(active.stream.put, Notice(VERIFIED, "speculation: no drafts were verified, so nothing is compared"))
            return False
        self._release(active)
        again = make_replay(active, told)

        def begin() -> None:
            with self._wake:
                self._scheduler.add(again.sequence)
                self._active[again.sequence.id] = again

        _, error = attempt(begin)
        if error is not None:
            attempt(again.fail, error)
        return True

    def _guarded(self, active: Active, action: Callable[..., Any], *args: Any) -> None:
        _, error = attempt(action, *args)
        if error is not None:
            self._fail(active, error)

    def _end(self, active: Active, make_finish: Callable[[Active], Finish]) -> None:
        """Free the sequence first, then tell: whoever hears of the end finds the pages free."""
        self._release(active)

        def tell() -> None:
            active.start()
            active.stream.put(make_finish(active))

        _, error = attempt(tell)
        if error is not None:
            attempt(active.fail, error)

    def _fail(self, active: Active, error: LlmrunError) -> None:
        self._release(active, keep=False)
        attempt(active.start)
        attempt(active.fail, error)

    def _release(self, active: Active, keep: bool = True) -> None:
        self._spec.forget(active.sequence.id)
        with self._wake:
            self._scheduler.finish(active.sequence, keep)
            self._active.pop(active.sequence.id, None)
            self._wake.notify_all()
