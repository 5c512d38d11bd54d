"""Types that the gguf package does not decode: blocks written out by hand, and llama.cpp's own decoders where present.

The second needs LLAMACPP_LIB, a directory with llama.cpp's shared libraries.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from benches.random_blocks import set_scales
from strata_engine.formats.gguf_types import TYPES_BY_NAME
from strata_engine.formats.quant import FORMATS
from strata_engine.formats.quant.own_block import NAMES as OWN

HALF = bytes.fromhex("0038")  # 0.5 as f16


def unpacked(name: str, block: bytes) -> list[float]:
    return FORMATS[name].unpack(torch.frombuffer(bytearray(block), dtype=torch.uint8)).tolist()


def test_one_bit_values_are_plus_or_minus_the_scale_lowest_bit_first():
    values = unpacked("Q1_0", HALF + bytes([0b00000101, 0x80]) + bytes(13) + b"\xff")
    assert values[:8] == [0.5, -0.5, 0.5, -0.5, -0.5, -0.5, -0.5, -0.5]
    assert values[8:16] == [-0.5] * 7 + [0.5]
    assert values[16:120] == [-0.5] * 104
    assert values[120:] == [0.5] * 8


def test_two_bit_values_are_minus_one_to_two_times_the_scale_in_order():
    values = unpacked("Q2_0", HALF + bytes([0b11100100, 0b00000011]) + bytes(13) + b"\x55")
    assert values[:4] == [-0.5, 0.0, 0.5, 1.0]
    assert values[4:8] == [1.0, -0.5, -0.5, -0.5]
    assert values[8:60] == [-0.5] * 52
    assert values[60:] == [0.0] * 4


class Traits(ctypes.Structure):
    """ggml_type_traits, as far as the decoder."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("interleave", ctypes.c_int64),
        ("nbytes", ctypes.c_size_t),
        ("quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    ]


def peer_library() -> Path | None:
    folder = os.environ.get("LLAMACPP_LIB")
    return next(iter(sorted(Path(folder).glob("libggml-base.so*"))), None) if folder else None


@pytest.mark.slow  # loads a foreign library
@pytest.mark.skipif(peer_library() is None, reason="LLAMACPP_LIB names no directory with libggml-base.so")
@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"F32"} - OWN))  # no file and no other program has our own types
def test_random_blocks_decode_as_llamacpp_does(name):
    library = ctypes.CDLL(str(peer_library()))
    library.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    traits = library.ggml_get_type_traits(TYPES_BY_NAME[name].id).contents
    assert (traits.name.decode().upper(), traits.nbytes) == (name, FORMATS[name].block_bytes)
    random = np.random.default_rng(9)
    stored = random.integers(0, 256, (3000, FORMATS[name].block_bytes), dtype=np.uint8)
    if name in ("F16", "BF16"):
        stored = FORMATS[name].pack(torch.randn(3000, 1)).numpy()
    elif name != "NVFP4":
        set_scales(stored, name, np.exp2(random.integers(-8, 8, (3000, 1))))
    wanted = np.empty((3000, FORMATS[name].block), np.float32)
    traits.to_float(stored.ctypes.data, wanted.ctypes.data, wanted.size)
    got = FORMATS[name].unpack(torch.from_numpy(stored)).numpy()
    # compilers fuse multiply and add in types with a minimum: one rounding less
    error = np.abs(got - wanted)
    assert (error <= (1e-6 * np.abs(wanted).max(1, keepdims=True) if "K" in name or name.endswith("_1") else 0)).all()
