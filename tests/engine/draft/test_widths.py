"""Widths of steps with drafts: few, and never more than a quarter beyond what is wanted."""

from __future__ import annotations

import pytest

from strata_engine.draft.widths import depths, is_width, padded


def test_depths_reach_the_deepest_useful_one():
    assert depths(1) == (1,) and depths(0) == ()
    assert depths(4) == (1, 2, 3, 4) and depths(6) == (1, 2, 3, 4, 5, 6)
    assert depths(16) == (1, 2, 3, 4, 5, 7, 11, 15, 16)


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_widths_are_few_and_close(batch: int):
    found = [rows for rows in range(batch, 257) if is_width(batch, rows)]
    assert len(found) < 8 + 4 * 5 + len(depths(31))
    assert all(after - before <= max(1, before // 4) for before, after in zip(found, found[1:], strict=False))
    assert all(is_width(batch, batch * (1 + depth)) for depth in depths(15))


def test_padded_rows_are_few():
    assert [padded(rows) for rows in (1, 2, 3, 5, 8, 9, 16, 17, 33, 70, 129, 500)] == [
        1, 2, 4, 8, 8, 16, 16, 24, 48, 96, 192, 512,
    ]  # fmt: skip
    assert all(rows <= padded(rows) == padded(padded(rows)) for rows in range(1, 600))
    assert len({padded(rows) for rows in range(1, 513)}) <= 17
