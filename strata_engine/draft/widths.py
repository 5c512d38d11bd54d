"""Which widths steps with drafts may have. Each shape of step is recorded once, which costs as much as a step or more:
few shapes, used often, are worth more than a row more or less.
"""

from __future__ import annotations

_DEPTHS = (1, 2, 3, 4, 5, 7, 11, 15, 23, 31)  # rows of one sequence: 2, 3, 4, 5, 6, 8, 12, 16, 24, 32


def depths(most: int) -> tuple[int, ...]:
    """How deep a chain may be asked for, ascending, the deepest useful one among them."""
    return (*(depth for depth in _DEPTHS if depth < most), most) if most > 0 else ()


def is_width(batch: int, rows: int) -> bool:
    """May a step of so many sequences have so many rows? A few for each power of two, and equal parts for all."""
    if rows <= 8:
        return True
    unit = 1 << (rows.bit_length() - 3)
    return rows % unit == 0 or (rows % batch == 0 and rows // batch - 1 in _DEPTHS)


def padded(rows: int) -> int:
    """The rows of a pass in which rows may stand twice: few shapes for any number of them."""
    power = 1 << (rows - 1).bit_length()
    unit = power if rows <= 16 else min(64, power // 4)
    return -(-rows // unit) * unit
