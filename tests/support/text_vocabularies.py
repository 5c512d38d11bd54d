"""Vocabularies for tests of text rules: the real qwen2 one, and small ones with special spellings of choice."""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from strata_engine.formats.gguf_header import parse_header
from strata_engine.text.tokenizer import BpeTokenizer, from_gguf
from tests.support.cutting import VECTORS
from tests.support.tiny_tokenizer import vocabulary

CONTROL, USER = 3, 4
CHATML = {"<|endoftext|>": CONTROL, "<|im_start|>": CONTROL, "<|im_end|>": CONTROL}
TAGS = {"<think>": USER, "</think>": USER, "<tool_call>": USER, "</tool_call>": USER}


@cache
def qwen2_metadata() -> Mapping[str, Any]:
    """The packed vocabulary's keys, read by our own header reader."""
    packed = VECTORS / "tokenizers" / "ggml-vocab-qwen2.gguf.xz"
    return parse_header(
        memoryview(lzma.decompress(packed.read_bytes())), Path(packed.name), need_tensors=False
    ).metadata


@cache
def qwen(pre: str = "qwen2") -> BpeTokenizer:
    """The real vocabulary under this pre-tokenizer."""
    tokenizer = from_gguf({**qwen2_metadata(), "tokenizer.ggml.pre": pre})
    assert tokenizer is not None
    return tokenizer


def vectors(pre: str) -> list[tuple[str, list[int]]]:
    """(text, ids) pairs of the published vectors."""
    base = VECTORS / "tokenizers" / f"ggml-vocab-{pre}.gguf"
    texts = base.with_name(base.name + ".inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = base.with_name(base.name + ".out").read_text().split("\n")
    return [(text, [int(word) for word in line.split()]) for text, line in zip(texts, lines, strict=True)]


def small_metadata(special: Mapping[str, int] | None = None, **keys: Any) -> dict[str, Any]:
    """A byte-level vocabulary with special spellings (spelling -> type) in front; more keys as `eos_token_id=2`."""
    special = {**CHATML, **TAGS} if special is None else special
    tokens, merges = vocabulary()
    plain = [t for t in tokens if t not in CHATML]
    metadata: dict[str, Any] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": [*special, *plain],
        "token_type": [*special.values(), *[1] * len(plain)],
        "merges": merges,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in {**metadata, **keys}.items() if value is not None}


def small(special: Mapping[str, int] | None = None, **keys: Any) -> BpeTokenizer:
    """The tokenizer of `small_metadata`."""
    tokenizer = from_gguf(small_metadata(special, **keys))
    assert tokenizer is not None
    return tokenizer
