"""Prompt lookup: the longest earlier match of the last tokens, and what followed it.

Every run of 3 tokens is kept in a table with its latest place; places of the same run are chained, as in a compressor's
window. A match found for the last token is tried first for the next one, so a long copy costs the same for each token.
State: about 110 bytes a distinct run (one table entry) and 4 bytes a token; 128k tokens take about 14 MB.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from strata_engine.draft.base import DraftContext, Proposal
from strata_engine.draft.lookup import LEAST_MATCH, LookupDrafter, confidences

MOST = 16
_PLACES = 16  # earlier places looked at
_LONGEST = 64  # longer matches are not told apart
_ID_BITS = 21  # of a token id in a table key: three fit a small integer
_ENTRY_BYTES = 110


def open_ngram(context: DraftContext) -> LookupDrafter:
    """The drafter of `--spec ngram`; it fits every model."""
    return LookupDrafter("ngram", MOST, NgramIndex)


class NgramIndex:
    """The tokens of one sequence, searchable by their runs of 3."""

    def __init__(self) -> None:
        self.count = 0
        self._latest: dict[int, int] = {}  # run -> place after its latest occurrence
        self._earlier = array("i")  # [place]: the place of the same run before that, 0: none
        self._match = 0  # place after the best earlier match of the tokens taken in, 0: none
        self._length = 0

    @property
    def index_bytes(self) -> int:
        """Bytes of the state, counted as the module says."""
        return _ENTRY_BYTES * len(self._latest) + 4 * len(self._earlier)

    def extend(self, tokens: Sequence[int]) -> None:
        """Take `tokens[count:]` in; searches once, for the last of them."""
        end = len(tokens)
        if end == self.count:
            return
        self._follow(tokens, end)
        latest, earlier = self._latest, self._earlier
        mask = (1 << 3 * _ID_BITS) - 1
        start = self.count
        run = 0
        for token in tokens[max(0, start - 2) : start]:
            run = run << _ID_BITS | token
        for place in range(start + 1, end + 1):
            run = (run << _ID_BITS | tokens[place - 1]) & mask
            before = latest.get(run, 0) if place >= LEAST_MATCH else 0
            earlier.append(before)
            if place >= LEAST_MATCH:
                latest[run] = place
        self.count = end
        self._search(tokens, end)

    def _follow(self, tokens: Sequence[int], end: int) -> None:
        """Move the match that stood along the new tokens; drop it when they differ."""
        start = self.count
        new = end - start
        if self._match and tokens[self._match : self._match + new] == tokens[start:end]:
            self._match += new
            self._length = min(self._length + new, _LONGEST)
        else:
            self._match = self._length = 0

    def _search(self, tokens: Sequence[int], end: int) -> None:
        """A longer match than the one that stands, among the latest places of the last run."""
        place = self._earlier[end - 1]
        for _ in range(_PLACES):
            if not place or self._length >= _LONGEST:
                return
            best = max(self._length, LEAST_MATCH - 1)
            # one comparison throws out most places: a longer match must hold at its far end too
            if place > best and tokens[place - best - 1] == tokens[end - best - 1]:
                length = match_length(tokens, place, end)
                if length > best:
                    self._match, self._length = place, length
            place = self._earlier[place - 1]

    def propose(self, tokens: Sequence[int], most: int) -> Proposal:
        """What followed the match, at most twice as long; where it reaches the end, the same text goes round again."""
        if not self._match:
            return Proposal(())
        wanted = min(most, 2 * self._length)
        drafts = list(tokens[self._match : self._match + wanted])
        period = len(tokens) - self._match
        while len(drafts) < wanted:
            drafts.append(drafts[-period])
        return Proposal(tuple(drafts), confidences(self._length, len(drafts)))


def match_length(tokens: Sequence[int], place: int, end: int) -> int:
    """How many tokens before `place` equal those before `end`, at most 64."""
    length, most = 0, min(place, _LONGEST)
    while length < most and tokens[place - length - 1] == tokens[end - length - 1]:
        length += 1
    return length
