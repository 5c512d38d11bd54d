"""Aligned plain-text columns; wide characters count two cells."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def cells(text: str) -> int:
    """Terminal cells a text takes."""
    return sum(
        0 if unicodedata.combining(c) or c == "\u200d" else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def align(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Lines of a table: two blanks between columns, no trailing blanks."""
    table = [list(headers), *[list(r) for r in rows]] if headers else [list(r) for r in rows]
    if not table:
        return []
    widths = [max(cells(row[i]) for row in table) for i in range(len(table[0]))]
    lines: list[str] = []
    for row in table:
        parts: list[str] = []
        for i, text in enumerate(row):
            pad = " " * (widths[i] - cells(text))
            parts.append(pad + text if i in right else text + pad)
        lines.append("  ".join(parts).rstrip())
    return lines
