"""Positions of an image's patches in the tower: the learned grid stretched over them, and rows and columns to turn by.

Patches stand in the order of the tokens they are merged into: all patches of a token follow each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def merge_order(values: NDArray[np.floating] | NDArray[np.integer], merge: int) -> NDArray[np.floating]:
    """values [h, w, ...] row by row -> [h * w, ...] in the order of patches."""
    h, w = values.shape[:2]
    blocks = values.reshape(h // merge, merge, w // merge, merge, *values.shape[2:])
    return blocks.swapaxes(1, 2).reshape(h * w, *values.shape[2:])


def learned_positions(table: NDArray[np.float32], grid: tuple[int, int], merge: int) -> NDArray[np.float32]:
    """f32 [h * w, W]: `table` [side * side, W] as a grid, stretched to h x w patches corner to corner, bilinear."""
    side = int(round(table.shape[0] ** 0.5))
    (top, down), (left, right) = (_between(count, side) for count in grid)
    cells = table.reshape(side, side, -1)
    low, high = np.minimum(top + 1, side - 1), np.minimum(left + 1, side - 1)
    down, right = down[:, None, None], right[None, :, None]
    upper = cells[top][:, left] * (1 - right) + cells[top][:, high] * right
    lower = cells[low][:, left] * (1 - right) + cells[low][:, high] * right
    return np.ascontiguousarray(merge_order(upper * (1 - down) + lower * down, merge), dtype=np.float32)


def _between(count: int, side: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Cell before each of `count` places from corner to corner of `side` cells, and how far beyond it the place is."""
    places = np.linspace(0, side - 1, count, dtype=np.float32)
    cells = places.astype(np.intp)
    return cells, places - cells.astype(np.float32)


def patch_axes(grid: tuple[int, int], merge: int) -> NDArray[np.int32]:
    """i32 [3, h * w]: row, column and 0 of each patch."""
    rows, columns = np.indices(grid, dtype=np.int32)
    placed = merge_order(np.stack([rows, columns, np.zeros_like(rows)], -1), merge)
    return np.ascontiguousarray(placed.T, dtype=np.int32)
