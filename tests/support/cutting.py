"""Ways to cut a sequence into pieces, and readers of the case files in tests/vectors."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
Cut = TypeVar("Cut", str, bytes)
EVERY_WAY_MOST = 15  # 2^14 ways


def cases(name: str) -> list[dict[str, Any]]:
    """The lines of tests/vectors/text/NAME.jsonl."""
    lines = (VECTORS / "text" / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line.strip()]


def ways(whole: Cut) -> Iterator[list[Cut]]:
    """Every way to cut a short sequence; of a long one all ways with up to two cuts, and equal pieces."""
    size = len(whole)
    if size <= EVERY_WAY_MOST:
        for bits in range(2 ** max(0, size - 1)):
            yield cut(whole, [i + 1 for i in range(size - 1) if bits >> i & 1])
        return
    for count in (0, 1, 2):
        for places in itertools.combinations(range(1, size), count):
            yield cut(whole, places)
    for width in (1, 2, 3, 7):
        yield cut(whole, range(width, size, width))


def cut(whole: Cut, places: Sequence[int]) -> list[Cut]:
    """The pieces between ascending places."""
    edges = [0, *places, len(whole)]
    return [whole[a:b] for a, b in itertools.pairwise(edges)]
