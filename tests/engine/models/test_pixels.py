"""Image files -> pixels -> patches: every mode of a file, the same numbers as transformers makes, limits."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from strata_engine.errors import RequestRefused
from strata_engine.models.vision.config import PixelRules
from strata_engine.models.vision.patches import count_tokens, cut, fitting_size, see_image
from strata_engine.models.vision.pixels import read_pixels, read_size
from strata_engine.models.vision.resample import resize
from tests.support import tiny_models  # noqa: F401 - one thread for torch
from tests.support.images import file_of, picture

RULES = PixelRules(patch=16, merge=2, frames=2)
SMALL = PixelRules(patch=4, merge=2, frames=2, least=64, most=4096)
SIZES = [(301, 457), (53, 37), (640, 97), (1, 1), (31, 33), (64, 64), (199, 1), (700, 1000)]


def torch_resize(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """What torchvision's resize calls for 8-bit images."""
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None].contiguous()
    resized = torch.nn.functional.interpolate(image, size=(height, width), mode="bicubic", antialias=True)
    return resized[0].permute(1, 2, 0).numpy()


@pytest.mark.parametrize(("size", "height", "width"), [
    ((301, 457), 288, 448), ((53, 37), 64, 96), ((640, 97), 32, 32), ((1, 1), 32, 32), ((31, 33), 41, 500),
    ((64, 64), 64, 96), ((199, 1), 41, 500), ((700, 1000), 288, 448), ((53, 37), 992, 704),
])  # fmt: skip
def test_resizing_equals_torch_bit_for_bit(size, height, width):
    pixels = np.array(picture(*size))
    assert np.array_equal(resize(pixels, height, width), torch_resize(pixels, height, width))


@pytest.mark.parametrize("size", SIZES)
def test_patches_equal_those_of_transformers(size):
    """Its processor for Pillow, given the image as its processor for torchvision would have resized it."""
    image = picture(*size)
    height, width = fitting_size(*np.asarray(image).shape[:2], RULES)
    resized = Image.fromarray(torch_resize(np.array(image), height, width))
    processor = Qwen2VLImageProcessorPil(
        patch_size=16, merge_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3, do_resize=False,
        size={"shortest_edge": RULES.least, "longest_edge": RULES.most},
    )  # fmt: skip
    wanted = processor(images=[resized], return_tensors="np")
    seen = see_image(file_of(image), RULES)
    assert wanted["image_grid_thw"].tolist() == [[1, 2 * seen.height, 2 * seen.width]]
    assert np.abs(seen.patches - wanted["pixel_values"]).max() <= 1e-3


@pytest.mark.parametrize("size", [*SIZES, (5000, 4100), (12000, 61), (61, 12000)])
@pytest.mark.parametrize("rules", [RULES, SMALL])
def test_sizes_are_those_of_transformers(size, rules):
    edge = rules.patch * rules.merge
    assert fitting_size(*size, rules) == smart_resize(*size, edge, rules.least, rules.most)


def test_an_image_longer_than_200_to_1_is_refused():
    with pytest.raises(RequestRefused, match="too long and thin"):
        fitting_size(1, 201, RULES)


def test_cut_puts_the_patches_of_a_token_together():
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[0:4, 12:16] = 255  # the second patch of the second token
    patches = cut(pixels, SMALL)
    assert patches.shape == (8, 3 * 2 * 4 * 4)
    assert [bool((p == 1).all()) for p in patches] == [False, False, False, False, False, True, False, False]


def mean_of(data: bytes) -> list[int]:
    return read_pixels(data).reshape(-1, 3).mean(0).round().astype(int).tolist()


MODES = {  # what each kind of file can hold
    "PNG": ["1", "L", "P", "RGB"],
    "JPEG": ["1", "L", "RGB", "CMYK", "YCbCr"],
    "TIFF": ["1", "L", "P", "RGB", "CMYK", "YCbCr"],
}


@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for kind, modes in MODES.items() for mode in modes])
def test_every_mode_becomes_red_green_and_blue(kind, mode):
    image = Image.new("RGB", (9, 5), (255, 255, 255)).convert(mode)
    pixels = read_pixels(file_of(image, kind))
    assert pixels.shape == (5, 9, 3)
    assert pixels.min() >= 250


def test_grey_of_16_bits_keeps_its_shades():
    shades = np.array([[0, 256 * 100, 256 * 200, 65535]], np.uint16)
    assert read_pixels(file_of(Image.fromarray(shades)))[0, :, 0].tolist() == [0, 100, 200, 255]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_is_transparent_shows_white(mode):
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0)).convert(mode)
    assert mean_of(file_of(clear)) == [255, 255, 255]
    half = Image.new("RGBA", (4, 4), (0, 0, 0, 128)).convert(mode)
    assert mean_of(file_of(half))[0] in (126, 127, 128)


def test_a_transparent_colour_of_a_palette_shows_white():
    image = Image.new("P", (4, 4), 3)
    image.putpalette([0, 0, 0] * 256)
    assert mean_of(file_of(image, transparency=3)) == [255, 255, 255]


@pytest.mark.parametrize("turn", [1, 3, 6, 8])
def test_the_image_stands_as_its_exif_says(turn):
    image = Image.new("RGB", (8, 4))
    image.paste((255, 255, 255), (0, 0, 2, 2))
    exif = Image.Exif()
    exif[0x0112] = turn
    pixels = read_pixels(file_of(image, exif=exif))
    corner = {1: (0, 0), 3: (-1, -1), 6: (0, -1), 8: (-1, 0)}[turn]
    assert pixels.shape == ((4, 8, 3) if turn in (1, 3) else (8, 4, 3))
    assert read_size(file_of(image, exif=exif)) == pixels.shape[:2]
    assert pixels[corner].tolist() == [255, 255, 255]
    assert pixels.sum() == 4 * 3 * 255


def test_of_several_frames_the_first_is_seen():
    frames = [Image.new("RGB", (3, 3), colour) for colour in ("white", "black")]
    assert mean_of(file_of(frames[0], "GIF", save_all=True, append_images=frames[1:])) == [255, 255, 255]


def huge_png(width: int, height: int) -> bytes:
    """The head of a PNG that claims a size; nothing may read on."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", SIZES)
def test_tokens_are_known_before_any_pixel_is_read(size):
    data = file_of(picture(*size))
    seen = see_image(data, SMALL)
    assert count_tokens(data, SMALL) == seen.height * seen.width
    assert count_tokens(huge_png(*size), SMALL) == seen.height * seen.width


@pytest.mark.parametrize("size", [(20000, 5001), (10001, 10000), (100000, 100000)])
def test_a_huge_image_is_refused_with_one_error(size):
    with pytest.raises(RequestRefused, match="too large"):
        read_pixels(huge_png(*size))


@pytest.mark.parametrize("data", [b"", b"x", b"<svg></svg>", b"%!PS-Adobe-3.0 EPSF-3.0\n"])
def test_what_is_no_image_is_refused(data):
    with pytest.raises(RequestRefused, match="cannot be read"):
        read_pixels(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"])
def test_a_cut_file_is_refused(kind):
    data = file_of(picture(64, 64), kind)
    with pytest.raises(RequestRefused, match="damaged|cannot be read"):
        read_pixels(data[: len(data) // 2])


def test_equal_pixels_have_one_key_and_others_another():
    image, other = picture(40, 30), picture(40, 30)
    other.putpixel((7, 7), (1, 2, 3))
    first = see_image(file_of(image), SMALL)
    assert see_image(file_of(image, "TIFF"), SMALL).key == first.key
    assert see_image(file_of(other), SMALL).key != first.key
