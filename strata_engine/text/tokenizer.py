"""Byte-level BPE on the `tokenizers` library, built from a GGUF vocabulary; tokenizer.json is served by the same class.

Control tokens and tags are found here, not by the library, so that the caller decides for each place of a text whether
they count. Pieces are spelled on demand: loading does no work per token. The library is imported on first use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.text import alphabet, pretokenizers
from strata_engine.text.library import library_errors
from strata_engine.text.specials import READ_TAGS, Specials, ending_ids, group, with_turns

if TYPE_CHECKING:
    import tokenizers

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_BYTE_SPELLING = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PREFIX = "tokenizer.ggml."
_KINDS = ("gpt2", "none")
_LONG_CHARS = 2048  # the library's other call costs half a millisecond more, and leaves the lock


@dataclass(frozen=True)
class Vocabulary:
    """What a tokenizer knows of its ids. `literal`: spelled as text, not in the byte alphabet. `hidden`: not shown."""

    size: int
    spelling: Callable[[int], str | None]
    literal: frozenset[int]
    hidden: frozenset[int]
    specials: Specials
    bos_id: int | None
    eos_id: int | None
    eos_ids: frozenset[int]
    add_bos: bool


class BpeTokenizer:
    """The Tokenizer of strata_engine.text.base. Safe to use from several threads."""

    def __init__(self, core: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
        self._core = core
        self._vocabulary = vocabulary
        self._pieces: dict[int, bytes] = {}
        self.vocab_size = vocabulary.size
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eos_ids = vocabulary.eos_ids
        self.add_bos = vocabulary.add_bos
        self.specials = vocabulary.specials
        self._hidden = vocabulary.hidden

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Ids without BOS. `special`: control tokens and tags spelled in the text become their ids.

        Without it both stay plain text (llama.cpp would still take tags: a user's "</think>" then closes a thought).
        """
        return self.encode_marked(text, () if special else None)

    def encode_marked(self, text: str, plain_starts: Collection[int] | None) -> list[int]:
        """As `encode`; special tokens count except at these offsets of the text (None: nowhere)."""
        text = whole(text)
        ids: list[int] = []
        for part in self.specials.cut(text, plain_starts is not None, plain_starts or ()):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encode_plain(part)
        return ids

    def least_tokens(self, chars: int) -> int:
        """No text of so many characters gives fewer ids. Cheap: nothing is encoded; 0 when nothing can be said."""
        return chars // self._longest if self._longest else 0

    @cached_property
    def _longest(self) -> int:
        """Most characters of a text that one token can stand for; 0: no bound is known."""
        normalizer = self._core.normalizer
        if normalizer is not None and type(normalizer).__name__ != "NFC":
            return 0
        spellings = filter(None, map(self._vocabulary.spelling, range(self.vocab_size)))
        # A character of the byte alphabet is a byte; NFC makes one character of at most four.
        return max(map(len, spellings), default=0) * (1 if normalizer is None else 4)

    def _encode_plain(self, text: str) -> list[int]:
        if len(text) < _LONG_CHARS:
            return self._core.encode(text, add_special_tokens=False).ids
        # `encode` keeps the interpreter's lock, and a long text would stop every other thread for seconds.
        return self._core.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def piece(self, token_id: int) -> bytes:
        """The exact bytes of one id; of a control token its spelling; of an id beyond the vocabulary nothing."""
        known = self._pieces.get(token_id)
        if known is None:
            known = self._pieces[token_id] = self._spell(token_id)
        return known

    def is_control(self, token_id: int) -> bool:
        """True for tokens that are not shown: control, unknown and unused ones, and all that end a turn."""
        return token_id in self._hidden

    def decode(self, ids: Sequence[int], control: bool = True) -> str:
        """Text of ids, invalid bytes as U+FFFD. `control`: spell control tokens too."""
        shown = ids if control else [i for i in ids if not self.is_control(i)]
        return b"".join(map(self.piece, shown)).decode("utf-8", "replace")

    def spelling(self, token_id: int | None) -> str:
        """How a template writes this token; "" for none."""
        return "" if token_id is None else self.piece(token_id).decode("utf-8", "replace")

    def _spell(self, token_id: int) -> bytes:
        spelling = self._vocabulary.spelling(token_id) if 0 <= token_id < self.vocab_size else None
        if spelling is None:
            return b""
        if token_id not in self._vocabulary.literal:
            return alphabet.to_bytes(spelling)
        byte = _BYTE_SPELLING.fullmatch(spelling)
        return bytes([int(byte[1], 16)]) if byte else spelling.encode("utf-8", "replace")


def whole(text: str) -> str:
    """The text with halves of surrogate pairs joined and lone ones replaced by U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def from_gguf(metadata: Mapping[str, Any]) -> BpeTokenizer | None:
    """The tokenizer a GGUF file describes; None when it has none. Raises UsageError (unknown kind), CorruptFile."""
    kind = metadata.get(_PREFIX + "model", "none")
    if kind not in _KINDS:
        raise UsageError(
            f"tokenizer kind {kind!r} (tokenizer.ggml.model) is not supported; supported: {', '.join(_KINDS)}",
            "a byte-level BPE model, or token-id prompts only",
            {"kind": kind, "known": list(_KINDS)},
        )
    if kind == "none":
        return None
    tokens, types, merges = _tables(metadata)
    rule = pretokenizers.rule_of(metadata.get(_PREFIX + "pre", "default"))
    by_spelling = dict(zip(tokens, range(len(tokens)), strict=True))
    core = _core(by_spelling, merges, rule)
    return BpeTokenizer(core, _vocabulary(metadata, tokens, types, by_spelling, rule.adds_bos))


def _tables(metadata: Mapping[str, Any]) -> tuple[list[str], list[int], list[str]]:
    tokens, types, merges = (metadata.get(_PREFIX + name) for name in ("tokens", "token_type", "merges"))
    if tokens is None or merges is None or not len(tokens):
        missing = "tokens" if tokens is None or not len(tokens) else "merges"
        raise CorruptFile(f"the vocabulary is incomplete: {_PREFIX}{missing} is missing or empty")
    tokens, merges = list(tokens), list(merges)
    types = [_NORMAL] * len(tokens) if types is None else list(map(int, types))
    if len(types) != len(tokens):
        raise CorruptFile(f"the vocabulary has {len(tokens)} tokens but {len(types)} token types")
    return tokens, types, merges


def _core(by_spelling: dict[str, int], merges: list[str], rule: pretokenizers.PreRule) -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers.models import BPE

    pairs = merge_pairs(by_spelling, merges)
    with library_errors("the vocabulary cannot be used"):
        model = BPE(by_spelling, pairs, ignore_merges=rule.whole_words)
    core = tokenizers.Tokenizer(model)
    core.pre_tokenizer = pretokenizers.build(rule)
    return core


def merge_pairs(by_spelling: Mapping[str, int], merges: Sequence[str]) -> list[tuple[str, str]]:
    """Merges as pairs, checked here because the library panics on some faults. Raises CorruptFile."""
    pairs = [tuple(merge.split(" ")) for merge in merges]
    known = by_spelling.__contains__
    sound = all(map((2).__eq__, map(len, pairs)))
    if not (sound and all(map(known, chain.from_iterable(pairs))) and all(map(known, map("".join, pairs)))):
        bad = [p for p in pairs if len(p) != 2 or not all(map(known, (*p, "".join(p))))]
        raise CorruptFile(f"{len(bad)} of {len(pairs)} merges are not two pieces of the vocabulary that make a third")
    return cast("list[tuple[str, str]]", pairs)


def _vocabulary(
    metadata: Mapping[str, Any], tokens: list[str], types: list[int], by_spelling: Mapping[str, int], adds_bos: bool
) -> Vocabulary:
    odd = [(i, kind) for i, kind in enumerate(types) if kind != _NORMAL]
    specials = group((tokens[i], i, kind == _CONTROL) for i, kind in odd if kind in (_CONTROL, _USER))
    specials = with_turns(specials, by_spelling)
    ends = {_special_id(metadata, name, len(tokens)) for name in ("eos", "eot", "eom")} - {None}
    eos_ids = frozenset(e for e in ends if e is not None) | ending_ids(specials.control)
    hidden = {i for i, kind in odd if kind in (_CONTROL, _UNKNOWN, _UNUSED) and tokens[i] not in READ_TAGS}
    bos_id = _special_id(metadata, "bos", len(tokens))
    wants_bos = bool(metadata.get(_PREFIX + "add_bos_token", adds_bos))
    return Vocabulary(
        size=len(tokens),
        spelling=tokens.__getitem__,
        literal=frozenset(i for i, _ in odd),
        hidden=frozenset(hidden) | eos_ids,
        specials=specials,
        bos_id=bos_id,
        eos_id=_special_id(metadata, "eos", len(tokens)),
        eos_ids=eos_ids,
        add_bos=wants_bos and bos_id is not None,
    )


def _special_id(metadata: Mapping[str, Any], name: str, size: int) -> int | None:
    key = f"{_PREFIX}{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if not 0 <= int(value) < size:
        raise CorruptFile(f"{key} is {value}, but the vocabulary has {size} tokens", details={"key": key})
    return int(value)
