"""Have two models the same vocabulary? Drafts are token ids, so each id must mean the same text in both."""

from __future__ import annotations

from pathlib import Path

from strata_engine.errors import UsageError
from strata_engine.text.base import Tokenizer

MOST_EXTRA = 128  # ids that one of them may have beyond the other's: control tokens added later, and padding
_PROBE = "Is 37 + 26 = 63?\n\n\tNaïve façade — 你好, мир! def f(x): return x**2  # ok\n"


def require_same_vocabulary(
    path: Path, tokenizers: tuple[Tokenizer | None, Tokenizer | None], rows: tuple[int, int]
) -> None:
    """Raises UsageError naming both sides. Pairs are target, drafter; `rows`: of their heads."""
    target, own = tokenizers
    if target is None or own is None:
        if rows[0] != rows[1]:
            text = f"{path} has {rows[1]} tokens, the target {rows[0]}, and there are not two tokenizers to compare"
            raise UsageError(text, hint="use a draft model with the target's vocabulary")
        return
    sizes = target.vocab_size, own.vocab_size
    if abs(sizes[0] - sizes[1]) > MOST_EXTRA:
        text = f"{path} has a vocabulary of {sizes[1]} tokens, the target one of {sizes[0]}"
        raise UsageError(text, hint="use a draft model with the target's vocabulary")
    for number in range(min(sizes)):
        mine, theirs = own.piece(number), target.piece(number)
        if mine != theirs:
            text = f"{path}: token {number} is {_shown(mine)} in the draft model and {_shown(theirs)} in the target"
            raise UsageError(text, hint="use a draft model with the target's vocabulary")
    if own.encode(_PROBE) != target.encode(_PROBE):
        text = f"{path} cuts text into other tokens than the target does, though the tokens are the same"
        raise UsageError(text, hint="use a draft model with the target's tokenizer")


def _shown(piece: bytes) -> str:
    return repr(piece.decode("utf-8", "replace"))
