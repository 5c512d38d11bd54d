"""Images in a sequence's prompt: where they stand, the positions their tokens have, and their features once made.

Positions have three axes. Text counts on all of them alike; the tokens of an image of h x w tokens share one time, and
count rows and columns from there; what follows goes on max(h, w) later. So a decoded token stands at its index plus
`delta`, which is zero or less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Sight:
    """What the rows of a span see. `axes` i32 [3, n]: rotary positions in time, height and width.

    `rows` i32 [k]: which rows of the span stand for image features, `features` f32 [k, width] are these.
    """

    axes: NDArray[np.int32]
    rows: NDArray[np.int32]
    features: NDArray[np.float32]


@dataclass(eq=False)
class Picture:
    """One image: its first token, its rows and columns of tokens, and a hash of its pixels.

    `patches` f32 [patches, patch width] until `features` f32 [h * w, feature width] are made of them.
    """

    start: int
    height: int
    width: int
    key: str
    patches: NDArray[np.float32] | None = None
    features: NDArray[np.float32] | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the prompt that stand for it."""
        return self.height * self.width

    def overlaps(self, start: int, count: int) -> bool:
        """Does any of `count` tokens from `start` belong to it?"""
        return start < self.start + self.tokens and self.start < start + count


class Pictures:
    """All images of one sequence, in order of place."""

    def __init__(self, prompt_tokens: int, images: Sequence[Picture]) -> None:
        """Raises ValueError when images overlap or leave the prompt (a bug of the caller)."""
        self.images = tuple(images)
        self._axes, self.delta = _positions(prompt_tokens, self.images)

    @property
    def keys(self) -> tuple[tuple[int, str], ...]:
        """First token and hash of each image: what two prompts of the same ids must share to be the same."""
        return tuple((image.start, image.key) for image in self.images)

    def within(self, start: int, count: int) -> Iterator[Picture]:
        """The images of which any of `count` tokens from `start` is a part."""
        return (image for image in self.images if image.overlaps(start, count))

    def sight(self, start: int, count: int, width: int) -> Sight:
        """What the rows of `count` tokens from `start` see; features are `width` wide.

        Raises ValueError when the features of an image there are not made yet.
        """
        rows: list[NDArray[np.int32]] = []
        features: list[NDArray[np.float32]] = []
        for image in self.within(start, count):
            if image.features is None:
                raise ValueError("the features of an image are not made yet")
            first, end = max(start, image.start), min(start + count, image.start + image.tokens)
            rows.append(np.arange(first - start, end - start, dtype=np.int32))
            features.append(image.features[first - image.start : end - image.start])
        if not rows:
            return Sight(self._at(start, count), np.empty(0, np.int32), np.empty((0, width), np.float32))
        return Sight(self._at(start, count), np.concatenate(rows), np.concatenate(features))

    def _at(self, start: int, count: int) -> NDArray[np.int32]:
        known = self._axes[:, start : start + count]
        later = np.arange(start + known.shape[1], start + count, dtype=np.int32) + self.delta
        return np.concatenate([known, np.broadcast_to(later, (3, later.size))], axis=1)


def _positions(prompt_tokens: int, images: Sequence[Picture]) -> tuple[NDArray[np.int32], int]:
    """(i32 [3, prompt tokens], delta)."""
    axes = np.empty((3, prompt_tokens), np.int32)
    at = position = 0
    for image in images:
        if image.start < at or image.start + image.tokens > prompt_tokens:
            raise ValueError(f"an image of {image.tokens} tokens at {image.start} of {prompt_tokens} after {at}")
        position = _text(axes, at, image.start, position)
        end = image.start + image.tokens
        rows, columns = np.indices((image.height, image.width)).reshape(2, -1)
        axes[:, image.start : end] = position
        axes[1, image.start : end] += rows.astype(np.int32)
        axes[2, image.start : end] += columns.astype(np.int32)
        at, position = end, position + max(image.height, image.width)
    position = _text(axes, at, prompt_tokens, position)
    return axes, position - prompt_tokens


def _text(axes: NDArray[np.int32], start: int, end: int, position: int) -> int:
    axes[:, start:end] = np.arange(position, position + end - start, dtype=np.int32)
    return position + end - start
