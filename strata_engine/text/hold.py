"""How much of a text's end must wait because it may be the start of something looked for. One function."""

from __future__ import annotations

from collections.abc import Iterable


def held_length(text: str, wanted: Iterable[str]) -> int:
    """Length of the longest end of `text` that is a proper start of one of `wanted` (none of them empty)."""
    longest = 0
    for word in wanted:
        # Only ends longer than the best so far are of interest, and of those the ones that begin like the word.
        at = text.find(word[0], max(0, len(text) - len(word) + 1))
        while 0 <= at < len(text) - longest:
            if word.startswith(text[at:]):
                longest = len(text) - at
                break
            at = text.find(word[0], at + 1)
    return longest
