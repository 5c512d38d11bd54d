"""How text is cut before byte-level BPE, by the rule name in a GGUF file (`tokenizer.ggml.pre`). Data, one builder.

To add a rule: a line in _RULES, its names in _NAMES, vectors in tests/vectors/tokenizers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata_engine.errors import UsageError

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class PreRule:
    """`cuts` are applied in order, each to the pieces of the one before. `adds_bos`: the family's default.

    `whole_words`: a piece that is a vocabulary entry is taken as it is, merges are not asked.
    """

    name: str
    cuts: tuple[str, ...]
    adds_bos: bool = False
    whole_words: bool = False


_RULES = {
    "gpt-2": PreRule("gpt-2", (_GPT2,)),
    # The rule of files that name none: punctuation and runs of three digits apart. Kept for such files only.
    "default": PreRule("default", (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "smollm": PreRule("smollm", (r"\p{N}", _GPT2)),
    "llama-bpe": PreRule(
        "llama-bpe",
        (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BREAKS}",),
        adds_bos=True,
        whole_words=True,
    ),
    "qwen2": PreRule(
        "qwen2", (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BREAKS}",)
    ),
    "qwen35": PreRule(
        "qwen35",
        (
            rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BREAKS}",
        ),
    ),
}
_NAMES = {
    "default": "default",
    **dict.fromkeys(("gpt-2", "phi-2", "mellum"), "gpt-2"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), "smollm"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), "llama-bpe"),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), "qwen2"),
    "qwen35": "qwen35",
}


def rule_of(name: str) -> PreRule:
    """The rule of this name. Raises UsageError with the known names."""
    known = _NAMES.get(name)
    if known is None:
        raise UsageError(
            f"unknown pre-tokenizer {name!r} (tokenizer.ggml.pre); known: {', '.join(sorted(_NAMES))}",
            "a directory with the model's tokenizer.json needs no such rule",
            {"pre": name, "known": sorted(_NAMES)},
        )
    return _RULES[known]


def build(rule: PreRule) -> PreTokenizer:
    """The rule for the `tokenizers` library: the cuts, then bytes to the printable alphabet."""
    from tokenizers import Regex, pre_tokenizers

    cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in rule.cuts]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
