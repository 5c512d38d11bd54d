"""The toy's vocabulary: 1,024 byte-level tokens cut as Qwen3.5 cuts them (digits one by one), special tokens last."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.support.toy.sums import turn

SIZE = 1024
END, START, STOP, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"
CONTROL = (END, START, STOP, MASK)
SHOWN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
# Letters with their marks, single digits, runs of punctuation, white space: models.md 7.1, "qwen35".
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def read_prose(path: str) -> list[str]:
    """Paragraphs of a text file, white space folded; short ones (headings, verse lines) are left out."""
    with open(path, encoding="utf-8", errors="replace") as file:
        paragraphs = [re.sub(r"\s+", " ", part).strip() for part in file.read().split("\n\n")]
    return [part for part in paragraphs if len(part) > 80]


def make_tokenizer(prose: Sequence[str], seed: int = 1) -> Tokenizer:
    """Byte pairs learned from 3,000 sums and the prose; the same every time."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(seed)
    turns = [turn(rng, of_test=False) for _ in range(3000)]
    sums = [re.sub(r"<[^>]*>", "", t.prompt + t.reply) for t in turns]
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(CONTROL) - len(SHOWN),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*sums, *prose], trainer)
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in CONTROL])
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in SHOWN])
    if tokenizer.get_vocab_size() != SIZE:
        raise ValueError(f"the vocabulary has {tokenizer.get_vocab_size()} tokens, not {SIZE}")
    return tokenizer
