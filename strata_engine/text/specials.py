"""The tokens that are more than text: control tokens, tags, added words; where they stand in a text.

Three groups, because a message may spell them without meaning them:
- control (<|im_end|>): real only where a template or a raw prompt writes them;
- tags (<think>, <tool_call>; user-defined in the file, spelled like markup): real there and in what the model said;
- words (user-defined, plain spelling such as runs of blanks): part of the vocabulary, real in any text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

# Spellings that end a turn wherever they are control tokens. The ones in <|...|> are trusted even when a file types
# them as plain text (a known converter fault); the others are too ordinary for that.
_ENDINGS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<|return|>",
            "<|call|>", "<end_of_turn>", "<turn|>", "<|eot|>", "<|endofprompt|>", "</s>", "<eos>", "<EOT>")  # fmt: skip
_OPENINGS = ("<|im_start|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>")
# Tags the engine reads itself; shown to the reader even when a file types them as control tokens.
READ_TAGS = frozenset(("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"))
_PADDING = re.compile(r"\[PAD\d+\]")
_TAG = re.compile(r"[<\[{|].*[>\]}|]", re.DOTALL)


@dataclass(frozen=True)
class Specials:
    """Spelling -> id of each group. `strips`: spellings that swallow blanks on their left, right."""

    control: Mapping[str, int]
    tags: Mapping[str, int]
    words: Mapping[str, int]
    strips: Mapping[str, tuple[bool, bool]]

    @cached_property
    def all(self) -> Mapping[str, int]:
        """Every group in one."""
        return {**self.words, **self.tags, **self.control}

    @cached_property
    def anywhere(self) -> re.Pattern[str] | None:
        """Finds words only."""
        return _pattern(self.words, self.strips)

    @cached_property
    def everything(self) -> re.Pattern[str] | None:
        """Finds all three groups."""
        return _pattern(self.all, self.strips)

    def cut(self, text: str, special: bool, plain_starts: Collection[int] = ()) -> list[str | int]:
        """The text as plain pieces and ids. `special`: control and tags count, but not at `plain_starts`."""
        pattern = self.everything if special else self.anywhere
        if pattern is None:
            return [text] if text else []
        pieces: list[str | int] = []
        done = 0
        for found in pattern.finditer(text):
            spelled = found.group()
            if plain_starts and found.start() + spelled.find(self.spelling_of(spelled)) in plain_starts:
                continue
            if found.start() > done:
                pieces.append(text[done : found.start()])
            pieces.append(self.all[self.spelling_of(spelled)])
            done = found.end()
        if done < len(text):
            pieces.append(text[done:])
        return pieces

    def spelling_of(self, matched: str) -> str:
        """The spelling in a matched text that may hold swallowed blanks too."""
        return matched if matched in self.all else matched.strip()


def group(tokens: Iterable[tuple[str, int, bool]], strips: Mapping[str, tuple[bool, bool]] | None = None) -> Specials:
    """Sort (spelling, id, is control) into the groups. Padding entries and empty spellings are left out."""
    control: dict[str, int] = {}
    tags: dict[str, int] = {}
    words: dict[str, int] = {}
    for spelling, token_id, is_control in tokens:
        if not spelling or _PADDING.fullmatch(spelling):
            continue
        if spelling in READ_TAGS:
            tags[spelling] = token_id
        elif is_control:
            control[spelling] = token_id
        else:
            (tags if _TAG.fullmatch(spelling) else words)[spelling] = token_id
    return Specials(control, tags, words, strips or {})


def with_turns(specials: Specials, vocabulary: Mapping[str, int]) -> Specials:
    """The same with the bracketed turn spellings made control tokens, however the file types them."""
    turns = {s: vocabulary[s] for s in (*_ENDINGS, *_OPENINGS) if s.startswith("<|") and s in vocabulary}
    tags = {s: i for s, i in specials.tags.items() if s not in turns}
    return replace(specials, control={**specials.control, **turns}, tags=tags)


def ending_ids(control: Mapping[str, int]) -> set[int]:
    """Ids that end a turn by their spelling."""
    return {control[s] for s in _ENDINGS if s in control}


def _pattern(spellings: Mapping[str, int], strips: Mapping[str, tuple[bool, bool]]) -> re.Pattern[str] | None:
    # Longest first: where two spellings start at one place the longer one is meant.
    ordered = sorted(spellings, key=len, reverse=True)
    if not ordered:
        return None
    return re.compile("|".join(_one(s, *strips.get(s, (False, False))) for s in ordered))


def _one(spelling: str, left: bool, right: bool) -> str:
    return (r"\s*" if left else "") + re.escape(spelling) + (r"\s*" if right else "")
