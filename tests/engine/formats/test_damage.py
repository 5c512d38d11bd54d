"""Whatever happens to a valid file, opening it gives a source or one CorruptFile, quickly; never another exception."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from strata_engine.errors import CorruptFile
from strata_engine.formats.open import open_weights
from strata_engine.formats.safetensors_header import parse_header as parse_safetensors
from tests.support.tiny_gguf import write_gguf

HANG_S = 20  # a guard against readers that never end; not a measurement
SETTINGS = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
FLIPS = st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(1, 255)), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("damage")


@cache
def valid_gguf(folder: Path) -> bytes:
    """A small model whose header is most of the file, so that flips hit it."""
    tensors = {f"blk.{n}.weight": np.ones((2, 32), np.float32) for n in range(6)}
    metadata = {"{a}.block_count": 2, "{a}.eps": 1e-5, "general.name": "tiny", "x.list": [1, 2, 3], "x.flag": True}
    metadata |= {"x.words": ["a", "b", "c"], "general.alignment": 32}
    (path,) = write_gguf(folder / "valid.gguf", "llama", metadata, tensors, "Q4_0")
    return path.read_bytes()


@cache
def valid_safetensors() -> bytes:
    return save({f"blk.{n}": torch.ones(2, 3) for n in range(6)}, metadata={"format": "pt"})


def try_gguf(folder: Path, data: bytes) -> None:
    path = folder / "damaged.gguf"
    path.write_bytes(data)
    start = time.perf_counter()
    try:
        source = open_weights(path)
    except CorruptFile as error:
        assert str(path) in error.message or path.name in error.message
    else:
        for name in source.tensors():
            assert len(source.read(name)) == source.tensors()[name].nbytes
        [str(value) for value in source.metadata().values()]
        source.close()
    assert time.perf_counter() - start < HANG_S


def flipped(data: bytes, flips: list[tuple[int, int]], within: int) -> bytes:
    changed = bytearray(data)
    for position, mask in flips:
        changed[position % within] ^= mask
    return bytes(changed)


@SETTINGS
@given(flips=FLIPS)
def test_flipped_bytes_in_a_gguf_header(folder, flips):
    data = valid_gguf(folder)
    try_gguf(folder, flipped(data, flips, len(data) - 400))


@SETTINGS
@given(cut=st.integers(0, 1 << 30))
def test_a_gguf_cut_anywhere_is_corrupt(folder, cut):
    data = valid_gguf(folder)
    path = folder / "cut.gguf"
    path.write_bytes(data[: cut % len(data)])
    end = max(meta.offset + meta.nbytes for meta in open_weights(folder / "valid.gguf").tensors().values())
    if cut % len(data) >= end:  # only padding is gone
        assert open_weights(path).tensors()
    else:
        with pytest.raises(CorruptFile):
            open_weights(path)


@SETTINGS
@given(at=st.integers(0, 1 << 30), piece=st.binary(min_size=1, max_size=24), remove=st.integers(0, 24))
def test_bytes_inserted_into_or_removed_from_a_gguf(folder, at, piece, remove):
    data = valid_gguf(folder)
    at %= len(data) - 400
    try_gguf(folder, data[:at] + piece + data[at + remove :])


@SETTINGS
@given(tail=st.binary(max_size=200))
def test_random_bytes_after_the_gguf_magic(folder, tail):
    try_gguf(folder, b"GGUF\3\0\0\0" + tail)


def try_safetensors(data: bytes) -> None:
    start = time.perf_counter()
    try:
        header = parse_safetensors(memoryview(data), Path("damaged.safetensors"))
    except CorruptFile as error:
        assert "damaged.safetensors" in error.message
    else:
        assert all(meta.offset + meta.nbytes <= len(data) for meta in header.tensors.values())
    assert time.perf_counter() - start < HANG_S


@SETTINGS
@given(flips=FLIPS)
def test_flipped_bytes_in_a_safetensors_header(flips):
    data = valid_safetensors()
    try_safetensors(flipped(data, flips, len(data) - 144))


@SETTINGS
@given(cut=st.integers(0, 1 << 30))
def test_a_safetensors_file_cut_anywhere_is_corrupt(cut):
    data = valid_safetensors()
    with pytest.raises(CorruptFile):
        parse_safetensors(memoryview(data[: cut % len(data)]), Path("cut.safetensors"))


@SETTINGS
@given(head=st.binary(min_size=8, max_size=8), tail=st.binary(max_size=100))
def test_random_bytes_as_a_safetensors_file(head, tail):
    try_safetensors(head + b"{" + tail)
    try_safetensors(len(tail).to_bytes(8, "little") + tail)
