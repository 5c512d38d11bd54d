"""Is every page held as often as it is counted, and only read where it is shared? For Memory.check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from strata_engine.core.sequence import Hold
from strata_engine.memory.pages import PagePool


def sharing_faults(holds: Sequence[Hold], pool: PagePool, page_tokens: int) -> list[str]:
    """What is wrong with the pages of `holds`, which are all that exist; empty when all is well."""
    found: list[str] = []
    held = Counter(page for hold in holds for page in hold.pages)
    if len(held) != pool.used:
        found.append(f"{pool.used} pages are taken, {len(held)} are held")
    for page, count in held.items():
        if count != pool.holders(page):
            found.append(f"page {page} is held {count} times, counted {pool.holders(page)} times")
    for hold in holds:
        if len(set(hold.pages)) != len(hold.pages):
            found.append("a page is twice in a sequence")
        if any(held[page] > 1 for page in hold.pages[hold.tokens // page_tokens :]):
            found.append("a page that is still written is shared")
    return found
