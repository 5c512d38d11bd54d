"""Images made by code, and their files as bytes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise over a slope, RGB: neighbouring pixels differ, and so do the corners."""
    rows, columns = np.mgrid[0:height, 0:width]
    slope = np.stack([rows * 255 // max(1, height - 1), columns * 255 // max(1, width - 1), (rows + columns) % 256], -1)
    noise = np.random.default_rng(seed).integers(-60, 60, slope.shape)
    return Image.fromarray((slope + noise).clip(0, 255).astype(np.uint8))


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The image as a file of this format."""
    target = io.BytesIO()
    image.save(target, kind, **options)
    return target.getvalue()
