"""The prefix cache: whole pages of computed tokens, shared read-only by sequences that begin alike.

A sequence enters its whole pages of committed rows, never a rejected draft; the next one that begins alike finds them,
and runs at least its last token itself. Kept pages that nobody holds count as free, so the cache refuses nobody.
With recurrent layers a prefix is worth something only where a copy of the state is: prompts are cut there.
Results are the same bits with and without it, in mode exact, where a row does not depend on how its prompt was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from strata_engine.core.sequence import Hold
from strata_engine.core.sequence import Sequence as TokenSequence
from strata_engine.memory.pages import PagePool
from strata_engine.memory.prefix_tree import UNKNOWN, Node, PageKey, PrefixTree, page_keys
from strata_engine.memory.snapshots import Snapshots

# Cutting a prompt costs a step, so it must be worth something.
LEAST_PAGES = 4
# A template's last tokens open the answer; the next turn often renders another opening there.
_OPENING_TOKENS = 8


@dataclass(frozen=True)
class Found:
    """Nodes a sequence can share, rows of them by the drafter that knows them, where copies of its state are wanted."""

    path: tuple[Node, ...] = ()
    drafted: dict[str, int] = field(default_factory=dict)
    marks: tuple[int, ...] = ()


@dataclass
class Counts:
    """Tokens of prompts that were looked up, and those of them that were found."""

    asked_tokens: int = 0
    found_tokens: int = 0


@dataclass
class Prefixes:
    """The cache of one Memory. `snapshots`: only of a model with a state."""

    pool: PagePool
    page_tokens: int
    snapshots: Snapshots | None = None
    tree: PrefixTree = field(default_factory=PrefixTree)
    counts: Counts = field(default_factory=Counts)
    _latest: dict[Hold, Node] = field(default_factory=dict)  # whose state was copied while the answer grew

    def find(self, sequence: TokenSequence) -> Found:
        """What of a sequence is known. Changes nothing; the last token is never part of it."""
        most = (len(sequence.tokens) - 1) // self.page_tokens
        path = self.tree.match(page_keys(sequence, self.page_tokens, most))
        if self.snapshots is None:
            whole = len(path) * self.page_tokens
            if whole in self._drafted(path).values() and not self._goes_on(path, sequence):
                path = path[:-1]  # a page read again costs less than a drafter that misses a row
            return Found(tuple(path), self._known(path, sequence))
        known = len(path)
        while path and path[-1] not in self.snapshots:
            path.pop()
        return Found(tuple(path), self._known(path, sequence), self._marks(sequence, len(path), known))

    def _drafted(self, path: Sequence[Node]) -> dict[str, int]:
        found = dict[str, int]()
        for name in path[0].drafted if path else ():
            for node in path:
                own = node.drafted.get(name, 0)
                found[name] = found.get(name, 0) + own
                if own < self.page_tokens:
                    break
        return found

    def _goes_on(self, path: Sequence[Node], sequence: TokenSequence) -> bool:
        return path[-1].after == sequence.tokens[len(path) * self.page_tokens]

    def _known(self, path: Sequence[Node], sequence: TokenSequence) -> dict[str, int]:
        """Rows a drafter knows; the last one only if it was read with the token that follows here, too."""
        drafted, whole = self._drafted(path), len(path) * self.page_tokens
        most = whole - 1 if path and not self._goes_on(path, sequence) else whole
        return {name: min(rows, most) for name, rows in drafted.items()}

    def _marks(self, sequence: TokenSequence, shared: int, known: int) -> tuple[int, ...]:
        """Where copies of the state are wanted: where a known path forks off, and short of the end of what is read."""
        last = max(0, len(sequence.tokens) - 1 - _OPENING_TOKENS) // self.page_tokens
        worth = sorted({pages for pages in (known, last) if pages >= shared + LEAST_PAGES})
        return tuple(pages * self.page_tokens for pages in worth)

    def share(self, hold: Hold, found: Found) -> None:
        """Put shared pages in front of an empty hold, or in place of what it holds."""
        pages = [node.page for node in found.path]
        self.pool.share(pages)
        self.pool.give(hold.pages[: len(pages)])
        for number, page in enumerate(pages):
            if number < len(hold.pages):
                hold.pages[number] = page
            else:
                hold.pages.append(page)
        hold.tokens = hold.shared = len(pages) * self.page_tokens
        hold.marks, hold.drafted = found.marks, dict(found.drafted)

    def count(self, sequence: TokenSequence, asked: int = 0) -> None:
        """A sequence shares what its hold says; one that was preempted counts once. `asked`: tokens looked up."""
        if not sequence.preemptions:
            self.counts.asked_tokens += asked
            self.counts.found_tokens += sequence.hold.shared - sequence.cached_tokens
            sequence.cached_tokens = sequence.hold.shared

    def worth_waiting(self, sequence: TokenSequence, other: TokenSequence) -> bool:
        """Do both begin with the same pages, enough of them to wait until `other`, which reads its prompt, is through?

        With a state these must go on to where a copy of it will be made.
        """
        pages = sequence.hold.shared // self.page_tokens + LEAST_PAGES
        if self.snapshots is not None:
            pages = max(pages, max(other.hold.marks, default=len(sequence.tokens)) // self.page_tokens)
        if pages * self.page_tokens >= min(len(sequence.tokens), len(other.tokens)):
            return False
        return page_keys(sequence, self.page_tokens, pages) == page_keys(other, self.page_tokens, pages)

    def load(self, hold: Hold, found: Found) -> None:
        """Put the state of a shared prefix into the hold's slot."""
        if self.snapshots is not None and found.path:
            self.snapshots.load(found.path[-1], hold.slot)

    def enter(self, sequence: TokenSequence) -> list[Node]:
        """Keep the whole pages of what a sequence has committed; their nodes."""
        hold, size = sequence.hold, self.page_tokens
        path: list[Node] = []
        parent: Node | None = None
        for number, key in enumerate(page_keys(sequence, size, hold.tokens // size)):
            page, start, end = hold.pages[number], number * size, (number + 1) * size
            drafted = {name: min(rows - start, size) for name, rows in hold.drafted.items() if rows > start}
            node = self._enter_page(parent, key, page, drafted)
            if node.page == page and start >= hold.shared:  # its own: rows of shared pages were read by another
                node.drafted = drafted
                node.after = sequence.tokens[end] if end < len(sequence.tokens) else UNKNOWN
            path.append(node)
            parent = node
        return path

    def _enter_page(self, parent: Node | None, key: PageKey, page: int, drafted: dict[str, int]) -> Node:
        node = self.tree.child(parent, key)
        if node is None:
            node = self.tree.add(parent, key, page)
            self.pool.keep(page)
        elif node.page != page and sum(drafted.values()) > sum(node.drafted.values()):
            self.pool.forget(self.tree.move(node, page))
            self.pool.keep(page)
        return node

    def copy_state(self, sequence: TokenSequence) -> None:
        """Keep a copy of the state if it is wanted after just these tokens: at a mark, or now and then in an answer."""
        hold = sequence.hold
        if self.snapshots is None or hold.fold or hold.tokens % self.page_tokens or not hold.tokens:
            return
        marked = hold.tokens in hold.marks
        if not marked and not self._wants_latest(sequence, self.snapshots.most // 2):
            return
        node = self.enter(sequence)[-1]
        hold.marks = tuple(mark for mark in hold.marks if mark > hold.tokens)
        hold.copied = hold.tokens
        if node in self.snapshots:
            return
        self.snapshots.save(node, hold.slot)
        if not marked:
            old = self._latest.pop(hold, None)
            if old is not None:
                self.snapshots.drop(old)
            self._latest[hold] = node

    def _wants_latest(self, sequence: TokenSequence, most: int) -> bool:
        """A growing answer keeps one copy, a few pages behind its end; of `most` sequences at once."""
        hold = sequence.hold
        if hold.tokens < sequence.prompt_tokens or hold.tokens < hold.copied + LEAST_PAGES * self.page_tokens:
            return False
        return hold in self._latest or len(self._latest) < most

    def leave(self, hold: Hold) -> None:
        """The hold has given its pages back."""
        self._latest.pop(hold, None)

    def touch(self, path: Sequence[Node]) -> None:
        """These nodes were used just now: what nobody holds of them goes last, the end of the path before its start."""
        for node in reversed(path):
            self.pool.touch(node.page)

    def forget(self, sequence: TokenSequence) -> None:
        """Nobody may find what this sequence has read: its values were not finite."""
        pages = sequence.hold.tokens // self.page_tokens
        for node in self.tree.match(page_keys(sequence, self.page_tokens, pages))[:1]:
            self._remove(node)

    def dropped(self, page: int) -> None:
        """The pool took an idle page for other contents: what is below it cannot be found any more."""
        node = self.tree.at(page)
        if node is not None:
            self._remove(node)

    def _remove(self, node: Node) -> None:
        for gone in self.tree.remove(node):
            self.pool.forget(gone.page)
            if self.snapshots is not None:
                self.snapshots.drop(gone)

    def faults(self) -> list[str]:
        """What is inconsistent between tree and pool; empty when all is well."""
        found = self.tree.faults()
        kept = {page for page in range(self.pool.total) if self.pool.is_kept(page)}
        nodes = {node.page for node in self.tree.nodes()}
        if kept != nodes:
            found.append(f"pages {sorted(kept ^ nodes)} are kept without a node, or the other way round")
        return found
