"""An answer run again without drafts (`--spec-verify`): the same sampler over the same prompt, compared token by token.

Its Finish is made already and waits for the comparison. What the second run does is told to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata_engine.core.sequence import Sequence
from strata_engine.errors import LlmrunError
from strata_engine.events import Finish, Notice
from strata_engine.runtime.active import Active
from strata_engine.runtime.sampler import Top
from strata_engine.runtime.transforms import Floats, History

VERIFIED, DIFFERS = "spec_verify", "spec_differs"


@dataclass(eq=False, kw_only=True)
class Replay(Active):
    """The second run. It takes the first one's stream, and ends as that did."""

    answer: list[int]  # the first run's tokens, prompt included
    told: Finish

    def start(self) -> None:
        """The stream was started by the first run."""

    def advance(self, logits: Floats | Top) -> Finish | None:
        """Choose the next token; ends at the first difference or with the last token."""
        tokens, at = self.sequence.tokens, len(self.sequence.tokens)
        token = self.chooser.choose(logits, History(tokens, self.sequence.prompt_tokens)).id
        before = self.answer[at]
        tokens.append(token)
        if token != before:
            place = at - self.sequence.prompt_tokens
            text = f"differs from plain decoding at token {place} (from 0): {before} with drafts, {token} without"
            if not isinstance(logits, Top):
                gap = float(logits[token]) - float(logits[before])
                text += f"; their logits differ by {gap:.3g} in the run without"
            self._tell(text, DIFFERS)
        elif len(tokens) == len(self.answer):
            self._tell(f"identical to plain decoding: {self.sequence.generated} tokens")
        else:
            return None
        return self.told

    def finish(self, reason: str, match: str | int | None = None, unseen: object = None) -> Finish:
        """Cancelled while it was compared: the answer itself was complete."""
        self._tell(f"not compared with plain decoding to the end: {reason}")
        return self.told

    def fail(self, error: LlmrunError) -> None:
        """The second run failed; the first one did not."""
        self._tell(f"not compared with plain decoding to the end: {error.message}")
        self.stream.put(self.told)

    def _tell(self, result: str, code: str = VERIFIED) -> None:
        self.stream.put(Notice(code, f"speculation: {result}"))


def make_replay(first: Active, told: Finish) -> Replay:
    """The second run of a sequence that ended with `told`."""
    done = first.sequence
    again = Sequence(done.id, done.tokens[: done.prompt_tokens], done.prompt_tokens, len(done.tokens))
    again.pictures, again.speculate = done.pictures, False
    return Replay(
        again, first.prompt, first.params, first.reader, first.chooser, first.stream, answer=done.tokens, told=told
    )
