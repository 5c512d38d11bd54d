"""Suffix decoding: an automaton of all substrings of a sequence, with counts; drafts follow the most frequent way.

The suffix automaton of prompt and output grows by at most two states a token, in constant time on average. The suffix
link of its last state is the longest end of the text that occurred before. From there and from a few shorter
ends a walk follows the commonest next token as long as the product of the shares stays worth a row; the walk whose
shares add up to most becomes the draft. Drafts are at most twice as long as their match.
State: up to 2 states of 24 bytes a token, and about 300 bytes for each state with several ways on: 100 to 350 bytes a
token in texts we measured. Past 65,536 tokens the automaton is built anew over the last half, so it stays under 24 MB.
Source: arXiv 2411.04975 (trees there; the scoring is its, the structure and the code are ours).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import mul

from strata_engine.draft.base import DraftContext, Proposal
from strata_engine.draft.lookup import LEAST_MATCH, LookupDrafter, confidences

MOST = 16
MOST_TOKENS = 65536
_LONGEST = 64  # longer matches are not told apart
_ENDS = 4  # matches of different lengths that are tried
_COUNTED = 16  # suffixes of a new token whose counts are kept up to date
_LEAST_SHARE = 0.1  # product of shares below which a draft is not worth a row
_WIDEST = 64  # states with more ways on say nothing
_STATE_BYTES, _FORK_BYTES = 24, 300
_NONE = -1


def open_suffix(context: DraftContext) -> LookupDrafter:
    """The drafter of `--spec suffix`; it fits every model."""
    return LookupDrafter("suffix", MOST, SuffixIndex)


class SuffixIndex:
    """The last tokens of one sequence as an automaton; `count` counts all of them."""

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self.count = 0
        self._most = most_tokens
        self._text = Automaton()

    @property
    def index_bytes(self) -> int:
        """Bytes of the state, counted as the module says."""
        return self._text.state_bytes

    def extend(self, tokens: Sequence[int]) -> None:
        """Take `tokens[count:]` in."""
        start = max(self.count, len(tokens) - self._most)
        if self._text.tokens + len(tokens) - start > self._most:
            self._text = Automaton()
            start = max(0, len(tokens) - self._most // 2)
        for token in tokens[start:]:
            self._text.add(token)
        self.count = len(tokens)

    def propose(self, tokens: Sequence[int], most: int) -> Proposal:
        """The draft with the highest sum of shares over the ends that occurred before."""
        text, best_score, best_match = self._text, 0.0, 0
        best: tuple[list[int], list[float]] = [], []
        state = text.link[text.last] if text.last else 0
        for _ in range(_ENDS):
            match = text.length[state]
            wanted = min(most, 2 * match)
            if match < LEAST_MATCH or best_score >= wanted:  # a shorter match cannot say more
                break
            drafts, shares, score = text.walk(state, wanted)
            if score > best_score:
                best, best_score, best_match = (drafts, shares), score, match
            state = text.link[state]
        drafts, shares = best
        sure = confidences(min(best_match, _LONGEST), len(drafts))
        return Proposal(tuple(drafts), tuple(map(mul, shares, sure)))


class Automaton:
    """Suffix automaton. States are numbers; state 0 is the empty string. A state with one way on needs no dict."""

    def __init__(self) -> None:
        self.tokens = 0
        self.last = 0
        self.length, self.link = array("i", [0]), array("i", [_NONE])
        self._seen = array("i", [0])  # how often the state's strings occurred
        self._token, self._target = array("i", [_NONE]), array("i", [_NONE])  # the only way on, where there is one
        self._forks = dict[int, dict[int, int]]()  # all ways of states with several

    @property
    def state_bytes(self) -> int:
        """Bytes of the state, counted as the module says."""
        ways = sum(max(0, len(ways) - 5) for ways in self._forks.values())  # 300 bytes hold 5
        return _STATE_BYTES * len(self.length) + _FORK_BYTES * len(self._forks) + 50 * ways

    def add(self, token: int) -> None:
        """Append a token to the text."""
        new = self._state(self.length[self.last] + 1, 0)
        state = self.last
        while state != _NONE and self._next(state, token) == _NONE:
            self._set(state, token, new)
            state = self.link[state]
        self.link[new] = 0 if state == _NONE else self._split(state, token)
        self.last = new
        self.tokens += 1
        state = new
        for _ in range(_COUNTED):
            if state <= 0:
                break
            self._seen[state] += 1
            state = self.link[state]

    def walk(self, state: int, most: int) -> tuple[list[int], list[float], float]:
        """Tokens along the commonest way from a state, the share of each, and the sum of the products of shares."""
        drafts, shares, product, score = list[int](), list[float](), 1.0, 0.0
        while len(drafts) < most:
            token, target, share = self._token[state], self._target[state], 1.0
            if token == _NONE:
                token, target, share = self._commonest(state)
                product *= share
                if product < _LEAST_SHARE:
                    break
            drafts.append(token)
            shares.append(share)
            score += product
            state = target
        return drafts, shares, score

    def _commonest(self, state: int) -> tuple[int, int, float]:
        """(token, next state, its share of the ways on) of the commonest way; share 0.0 where there is none."""
        ways = self._forks.get(state)
        if ways is None or len(ways) > _WIDEST:
            return _NONE, _NONE, 0.0
        seen, total, best = self._seen, 0, (0, _NONE, _NONE)
        for token, target in ways.items():
            often = seen[target]
            total += often
            if often > best[0] or (often == best[0] and target > best[1]):  # the newest of equals
                best = (often, target, token)
        return best[2], best[1], best[0] / max(total, 1)

    def _split(self, state: int, token: int) -> int:
        """The state of the longest suffix that is there already, split off a longer one where need be."""
        target = self._next(state, token)
        if self.length[target] == self.length[state] + 1:
            return target
        copy = self._state(self.length[state] + 1, self._seen[target])
        self.link[copy] = self.link[target]
        self._token[copy], self._target[copy] = self._token[target], self._target[target]
        if target in self._forks:
            self._forks[copy] = dict(self._forks[target])
        while state != _NONE and self._next(state, token) == target:
            self._set(state, token, copy)
            state = self.link[state]
        self.link[target] = copy
        return copy

    def _state(self, length: int, seen: int) -> int:
        for column, value in ((self.length, length), (self.link, _NONE), (self._seen, seen)):
            column.append(value)
        self._token.append(_NONE)
        self._target.append(_NONE)
        return len(self.length) - 1

    def _next(self, state: int, token: int) -> int:
        if self._token[state] == token:
            return self._target[state]
        ways = self._forks.get(state)
        return _NONE if ways is None else ways.get(token, _NONE)

    def _set(self, state: int, token: int, target: int) -> None:
        ways = self._forks.get(state)
        if ways is not None:
            ways[token] = target
        elif self._token[state] in (_NONE, token):
            self._token[state], self._target[state] = token, target
        else:
            self._forks[state] = {self._token[state]: self._target[state], token: target}
            self._token[state] = _NONE
