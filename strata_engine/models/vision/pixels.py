"""Bytes of an image file -> red, green and blue of every pixel. Pillow is imported when the first image comes.

Turned as its EXIF says; 16 bits become 8; what is transparent shows white; of several frames the first counts.
"""

from __future__ import annotations

import io
import struct
import threading
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from strata_engine.errors import RequestRefused
from strata_engine.units import format_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MOST_PIXELS = 100_000_000
MOST_BYTES = 100 << 20
_ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")

_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # of EXIF

_opening = threading.Lock()  # the filters of `warnings` are the process's


def read_pixels(data: bytes) -> NDArray[np.uint8]:
    """u8 [h, w, 3]. Raises RequestRefused: no image of a known format, damaged, or too large."""
    image = _checked(data)
    try:
        return np.array(_plain(image), dtype=np.uint8)
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError, IndexError) as error:
        raise RequestRefused(f"the image is damaged: {error}", "save it again as PNG or JPEG") from error


def read_size(data: bytes) -> tuple[int, int]:
    """(height, width) of the upright image, from the file's head alone. Raises RequestRefused as read_pixels does."""
    image = _checked(data)
    try:
        turned = image.getexif().get(_ORIENTATION) in _ON_ITS_SIDE
    except (OSError, ValueError, SyntaxError, EOFError, struct.error):  # read_pixels will say what is wrong with it
        turned = False
    width, height = image.size
    return (width, height) if turned else (height, width)


def _checked(data: bytes) -> Image:
    """The image, its pixels not read yet, of a size that may be read."""
    if len(data) > MOST_BYTES:
        raise RequestRefused(f"an image of {format_bytes(len(data))} is too large", f"at most {MOST_BYTES >> 20} MB")
    image = _open(data)
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise RequestRefused(
            f"an image of {width} x {height} pixels is too large", f"at most {MOST_PIXELS // 1_000_000} megapixels"
        )
    return image


def _open(data: bytes) -> Image:
    from PIL import Image as pillow

    bombs = (pillow.DecompressionBombError, pillow.DecompressionBombWarning)
    try:
        with _opening, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ours is the limit that counts
            return pillow.open(io.BytesIO(data), formats=FORMATS)
    except bombs as error:
        raise RequestRefused(f"the image is too large: {error}", f"at most {MOST_PIXELS} pixels") from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        known = ", ".join(FORMATS)
        raise RequestRefused("the image cannot be read", f"known formats: {known}; is the file whole?") from error


def _plain(image: Image) -> Image:
    """The image as RGB, upright."""
    from PIL import Image as pillow
    from PIL import ImageOps

    if image.mode == "F" or image.mode.startswith("I"):
        image = pillow.fromarray(_eight_bits(np.asarray(image), image.mode))
    image = ImageOps.exif_transpose(image)
    if image.mode not in _ALPHA and "transparency" not in image.info:
        return image.convert("RGB")
    over = image.convert("RGBA")
    return pillow.alpha_composite(pillow.new("RGBA", over.size, "white"), over).convert("RGB")


def _eight_bits(values: NDArray[Any], mode: str) -> NDArray[np.uint8]:
    """Grey values of 16 bits, or of 32 that hold 16 or 8, as 8 bits."""
    if mode != "F" and (mode.startswith("I;16") or values.max(initial=0) > 255):
        values = values.astype(np.int64) >> 8
    return values.clip(0, 255).astype(np.uint8)
