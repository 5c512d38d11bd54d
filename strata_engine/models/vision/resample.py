"""Bicubic resizing of 8-bit images, bit for bit as torch does it (interpolate, uint8, antialias) and so as the image
processors of transformers do with torchvision.

Each axis in turn, columns first: a cubic kernel (a = -0.5), widened where the image shrinks; weights of at most 15
bits, sums of products in i32, rounded to 8 bits after each axis. Pillow's own resize differs by a step in some pixels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_A = -0.5
_REACH = 2.0  # the kernel is zero beyond
_STRIP_ELEMENTS = 1 << 20  # of the result: bounds the 32-bit sums


def resize(image: Bytes, height: int, width: int) -> Bytes:
    """image u8 [h, w, colours] -> u8 [height, width, colours]."""
    across = _along_rows(np.ascontiguousarray(image.swapaxes(0, 1)), width)
    return _along_rows(np.ascontiguousarray(across.swapaxes(0, 1)), height)


def _along_rows(image: Bytes, count: int) -> Bytes:
    """u8 [n, m, c] -> [count, m, c]."""
    if image.shape[0] == count:
        return image
    first, weights, bits = _weights(image.shape[0], count)
    out = np.empty((count, *image.shape[1:]), np.uint8)
    step = max(1, _STRIP_ELEMENTS // (image.shape[2] * count))
    for start in range(0, image.shape[1], step):
        part = slice(start, start + step)
        out[:, part] = _sums(image[:, part].astype(np.int32), first, weights, bits)
    return out


def _sums(
    image: NDArray[np.int32], first: NDArray[np.intp], weights: NDArray[np.int32], bits: int
) -> NDArray[np.int32]:
    total = np.full((len(first), *image.shape[1:]), 1 << (bits - 1) if bits else 0, np.int32)
    for k in range(weights.shape[1]):
        source = np.minimum(first + k, image.shape[0] - 1)  # beyond the end the weight is 0
        total += weights[:, k, None, None] * image[source]
    return (total >> bits).clip(0, 255)


def _weights(size: int, count: int) -> tuple[NDArray[np.intp], NDArray[np.int32], int]:
    """For each of `count` places: the first of `size` elements that counts, weights i32 [count, most], their bits."""
    scale = size / count
    widened = max(scale, 1.0)
    centre = scale * (np.arange(count) + 0.5)
    first = np.maximum((centre - _REACH * widened + 0.5).astype(np.intp), 0)
    end = np.minimum((centre + _REACH * widened + 0.5).astype(np.intp), size)
    places = np.arange(int((end - first).max()))
    distance = np.abs((places + first[:, None] - centre[:, None] + 0.5) / widened)
    values = _kernel(distance) * (places < (end - first)[:, None])
    values /= values.sum(1, keepdims=True)
    bits, top = 0, float(values.max())
    while bits < 22 and int(0.5 + top * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    scaled = values * (1 << bits)
    return first, np.where(scaled < 0, scaled - 0.5, scaled + 0.5).astype(np.int32), bits


def _kernel(x: NDArray[np.float64]) -> NDArray[np.float64]:
    near = ((_A + 2) * x - (_A + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * _A
    return np.where(x < 1, near, np.where(x < _REACH, far, 0.0))
