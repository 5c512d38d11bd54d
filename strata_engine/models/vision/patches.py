"""Pixels -> the patch vectors that a tower takes: resized to whole tokens, scaled, cut, in the order of tokens."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strata_engine.errors import RequestRefused
from strata_engine.models.vision.config import PixelRules
from strata_engine.models.vision.pixels import read_pixels, read_size
from strata_engine.models.vision.positions import merge_order
from strata_engine.models.vision.resample import resize

_MOST_ASPECT = 200


@dataclass(frozen=True)
class SeenImage:
    """An image made ready. `height`, `width` in tokens; `patches` f32 [patches, patch width]; `key`: pixel hash."""

    height: int
    width: int
    patches: NDArray[np.float32]
    key: str


def see_image(data: bytes, rules: PixelRules) -> SeenImage:
    """The patches of an image file. Raises RequestRefused: not readable, too large, too long and thin."""
    pixels = read_pixels(data)
    height, width = fitting_size(pixels.shape[0], pixels.shape[1], rules)
    resized = resize(pixels, height, width)
    key = hashlib.sha256(f"{rules}{height}x{width}:".encode())
    key.update(resized.tobytes())
    edge = rules.patch * rules.merge
    return SeenImage(height // edge, width // edge, cut(resized, rules), key.hexdigest())


def count_tokens(data: bytes, rules: PixelRules) -> int:
    """Tokens that an image file will take, from its head alone. Raises RequestRefused as see_image does."""
    height, width = fitting_size(*read_size(data), rules)
    return height * width // (rules.patch * rules.merge) ** 2


def fitting_size(height: int, width: int, rules: PixelRules) -> tuple[int, int]:
    """The size that an image is resized to: whole tokens, within the limits, its shape kept as well as that allows.

    Raises RequestRefused for shapes longer than 200 to 1. Source: smart_resize of transformers' Qwen2VLImageProcessor.
    """
    if max(height, width) > _MOST_ASPECT * min(height, width):
        raise RequestRefused(
            f"an image of {width} x {height} pixels is too long and thin", f"at most {_MOST_ASPECT} to 1"
        )
    edge = rules.patch * rules.merge
    tall, wide = round(height / edge) * edge, round(width / edge) * edge
    if tall * wide > rules.most:
        shrink = math.sqrt(height * width / rules.most)
        tall = max(edge, math.floor(height / shrink / edge) * edge)
        wide = max(edge, math.floor(width / shrink / edge) * edge)
    elif tall * wide < rules.least:
        grow = math.sqrt(rules.least / (height * width))
        tall = math.ceil(height * grow / edge) * edge
        wide = math.ceil(width * grow / edge) * edge
    return tall, wide


def cut(pixels: NDArray[np.uint8], rules: PixelRules) -> NDArray[np.float32]:
    """u8 [h, w, 3] of whole tokens -> f32 [patches, colours x frames x edge x edge]; a still image fills all frames."""
    edge = rules.patch
    mean, std = (np.array(values, np.float32) * np.float32(255) for values in (rules.mean, rules.std))
    scaled = (pixels.astype(np.float32) - mean) / std
    rows, columns = pixels.shape[0] // edge, pixels.shape[1] // edge
    grid = scaled.reshape(rows, edge, columns, edge, 3).transpose(0, 2, 4, 1, 3)  # [rows, columns, 3, edge, edge]
    patches = merge_order(grid, rules.merge)[:, :, None]
    frames = np.broadcast_to(patches, (rows * columns, 3, rules.frames, edge, edge))
    return np.ascontiguousarray(frames.reshape(rows * columns, rules.patch_width), dtype=np.float32)
