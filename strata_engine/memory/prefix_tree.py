"""Which pages hold which tokens: a tree with one node for each kept page. Knows no tensors and no pool.

A node is found by its page's tokens under the nodes of all pages before it, so equal paths mean equal keys and values.
Only whole pages are in it. Where images stand in a page, their pixels and their place are part of its key.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from strata_engine.core.pictures import Pictures
from strata_engine.core.sequence import Sequence as TokenSequence

UNKNOWN = -1

PageKey = tuple[bytes, tuple[tuple[int, int, int, str], ...]]


@dataclass(eq=False)
class Node:
    """One page. `drafted`: by drafter, leading rows of it that its layers know; `after`: the token that followed it.

    A drafter that looks one token ahead has read `after` for the page's last row. UNKNOWN: nothing followed yet.
    """

    page: int
    key: PageKey
    parent: Node | None
    children: dict[PageKey, Node] = field(default_factory=dict)
    drafted: dict[str, int] = field(default_factory=dict)
    after: int = UNKNOWN


def page_keys(sequence: TokenSequence, page_tokens: int, pages: int) -> list[PageKey]:
    """Keys of the first `pages` whole pages of a sequence."""
    packed = array("i", sequence.tokens[: pages * page_tokens]).tobytes()
    size = len(packed) // pages if pages else 0
    tokens = [packed[start : start + size] for start in range(0, len(packed), size or 1)]
    pictures = sequence.pictures
    if pictures is None:
        return [(key, ()) for key in tokens]
    return [(key, _seen(pictures, number * page_tokens, page_tokens)) for number, key in enumerate(tokens)]


def _seen(pictures: Pictures, start: int, count: int) -> tuple[tuple[int, int, int, str], ...]:
    images = pictures.within(start, count)
    return tuple((image.start - start, image.height, image.width, image.key) for image in images)


class PrefixTree:
    """Nodes by path and by page."""

    def __init__(self) -> None:
        self._first: dict[PageKey, Node] = {}
        self._by_page: dict[int, Node] = {}

    def __len__(self) -> int:
        return len(self._by_page)

    def match(self, keys: Sequence[PageKey]) -> list[Node]:
        """The longest known path along `keys`. Changes nothing."""
        path: list[Node] = []
        children = self._first
        for key in keys:
            node = children.get(key)
            if node is None:
                break
            path.append(node)
            children = node.children
        return path

    def child(self, parent: Node | None, key: PageKey) -> Node | None:
        """The node of `key` under `parent`; None as parent: at the beginning."""
        return (self._first if parent is None else parent.children).get(key)

    def add(self, parent: Node | None, key: PageKey, page: int) -> Node:
        """A new node. Raises ValueError when the page or the place is taken (a bug of the caller)."""
        children = self._first if parent is None else parent.children
        if key in children or page in self._by_page:
            raise ValueError(f"page {page} or its place is in the tree already")
        node = children[key] = self._by_page[page] = Node(page, key, parent)
        return node

    def move(self, node: Node, page: int) -> int:
        """Let another page of the same contents stand for the node; the page that stood for it."""
        old = node.page
        del self._by_page[old]
        node.page = page
        self._by_page[page] = node
        return old

    def at(self, page: int) -> Node | None:
        """The node of a page."""
        return self._by_page.get(page)

    def remove(self, node: Node) -> list[Node]:
        """Take a node and all below it out; what was taken out, the node first."""
        siblings = self._first if node.parent is None else node.parent.children
        del siblings[node.key]
        gone = [node]
        for one in gone:  # grows while it is read
            gone.extend(one.children.values())
            del self._by_page[one.page]
        return gone

    def nodes(self) -> Iterator[Node]:
        """All nodes, in no order."""
        return iter(self._by_page.values())

    def faults(self) -> list[str]:
        """What is inconsistent between paths and pages; empty when all is well."""
        reached: list[Node] = list(self._first.values())
        for one in reached:  # grows while it is read
            reached.extend(one.children.values())
        found = [] if len(reached) == len(self._by_page) else [f"{len(self)} pages, {len(reached)} nodes in the tree"]
        for one in reached:
            if self._by_page.get(one.page) is not one:
                found.append(f"page {one.page} is not where the tree says")
            if any(child.parent is not one for child in one.children.values()):
                found.append(f"a node below page {one.page} has another parent")
        return found
