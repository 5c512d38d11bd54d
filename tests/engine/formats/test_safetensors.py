"""Safetensors: headers, single files, directories with an index, and what is said when something is wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from strata_engine.errors import CorruptFile, NotFound
from strata_engine.formats.safetensors import SafetensorsSource
from strata_engine.formats.safetensors_header import parse_header

TENSORS = {
    "a.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "b.weight": torch.arange(6, dtype=torch.float16).reshape(2, 3),
    "c.weight": torch.arange(5, dtype=torch.bfloat16),
    "d.count": torch.arange(3, dtype=torch.int64),
}


def file_bytes(header: object, data: bytes = b"\0" * 16) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(dtype: object = "F32", shape: object = (4,), offsets: object = (0, 16)) -> dict:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": offsets}


def fault(data: bytes) -> str:
    with pytest.raises(CorruptFile) as caught:
        parse_header(memoryview(data), Path("x.safetensors"))
    assert caught.value.exit_code == 6
    return caught.value.message


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def test_a_file_by_another_writer_is_read(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    source = SafetensorsSource.open(tmp_path / "model.safetensors")
    types = {name: meta.type for name, meta in source.tensors().items()}
    assert types == {"a.weight": "F32", "b.weight": "F16", "c.weight": "BF16", "d.count": "I64"}
    for name, tensor in TENSORS.items():
        assert source.tensors()[name].shape == tuple(tensor.shape)
        assert bytes(source.read(name)) == raw(tensor)
        assert source.read(name).readonly


def test_a_scalar_and_an_empty_tensor_are_valid():
    header = {"one": entry(shape=[], offsets=[0, 4]), "none": entry(shape=(0, 3), offsets=[4, 4])}
    tensors = parse_header(memoryview(file_bytes(header, b"\0" * 4)), Path("x")).tensors
    assert tensors["one"].shape == ()
    assert tensors["none"].nbytes == 0


def test_bytes_that_belong_to_nothing_are_a_warning():
    header = parse_header(memoryview(file_bytes({"t": entry()}, b"\0" * 20)), Path("x"))
    assert "4 bytes" in header.warnings[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ["empty"]),
        (b"\x10\0\0\0\0\0\0\0", ["not a safetensors"]),
        (file_bytes({"t": entry()})[:40], ["header"]),
        (struct.pack("<Q", 1 << 60) + b"{}", ["header"]),
        (struct.pack("<Q", (1 << 64) - 1) + b"{}", ["header"]),
        (file_bytes(b'{"t": '), ["JSON"]),
        (file_bytes(b'{"\xff": 1}'), ["JSON"]),
        (file_bytes(b'{"a":' * 50000), ["JSON"]),
        (file_bytes({}), ["no tensors"]),
        (file_bytes({"t": 3}), ["'t'"]),
        (file_bytes({"t": entry(dtype="F99")}), ["'t'", "F99"]),
        (file_bytes({"t": entry(dtype=3)}), ["'t'"]),
        (file_bytes({"t": entry(shape=[-4])}), ["'t'", "shape"]),
        (file_bytes({"t": entry(shape=[True, 4])}), ["'t'", "shape"]),
        (file_bytes({"t": entry(shape=4)}), ["'t'", "shape"]),
        (file_bytes({"t": entry(shape=[1 << 62, 1 << 62])}), ["'t'"]),
        (file_bytes({"t": entry(offsets=[0, 15])}), ["'t'", "16 bytes"]),
        (file_bytes({"t": entry(offsets=[16, 0])}), ["'t'"]),
        (file_bytes({"t": entry(offsets=[0])}), ["'t'", "data_offsets"]),
        (file_bytes({"t": entry(offsets=[8, 24])}), ["'t'", "the file has"]),
        (file_bytes({"t": entry(), "u": entry(offsets=[8, 24])}, b"\0" * 24), ["'t'", "'u'", "overlap"]),
        (file_bytes(b'{"t": 1, "t": 2}'), ["'t'", "twice"]),
        (file_bytes({"__metadata__": {"a": 1}, "t": entry()}), ["__metadata__"]),
        (b"GGUF" + b"\0" * 60, ["GGUF"]),
        (b"version https://git-lfs.github.com/spec/v1\n", ["LFS"]),
    ],
)
def test_a_fault_is_named(data, words):
    message = fault(data)
    assert all(word in message for word in words), message


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    names = list(TENSORS)
    files = {"model-00001-of-00002.safetensors": names[:2], "model-00002-of-00002.safetensors": names[2:]}
    for file, inside in files.items():
        save_file({name: TENSORS[name] for name in inside}, tmp_path / file)
    weight_map = {name: file for file, inside in files.items() for name in inside}
    index = {"metadata": {"total_size": 94}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def source_fault(path: Path) -> str:
    with pytest.raises(CorruptFile) as caught:
        SafetensorsSource.open(path)
    return caught.value.message


@pytest.mark.parametrize("given", ["", "model.safetensors.index.json"])
def test_a_directory_or_its_index_opens_all_files(checkpoint, given):
    source = SafetensorsSource.open(checkpoint / given)
    assert set(source.tensors()) == set(TENSORS)
    assert bytes(source.read("c.weight")) == raw(TENSORS["c.weight"])
    assert source.metadata()["config"] == {"model_type": "llama"}
    assert source.metadata()["generation_config"] == {}
    assert source.metadata()["index"] == {"total_size": 94}
    assert source.metadata()["tokenizer_files"] == {"tokenizer.json": checkpoint / "tokenizer.json"}


def test_a_directory_without_an_index_opens_all_parts(checkpoint):
    (checkpoint / "model.safetensors.index.json").unlink()
    assert set(SafetensorsSource.open(checkpoint).tensors()) == set(TENSORS)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_missing_file_is_named(checkpoint, indexed):
    if not indexed:
        (checkpoint / "model.safetensors.index.json").unlink()
    (checkpoint / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in source_fault(checkpoint)


def test_a_tensor_that_is_not_where_the_index_says_is_named(checkpoint):
    save_file({"z": torch.zeros(1)}, checkpoint / "model-00002-of-00002.safetensors")
    assert "'c.weight'" in source_fault(checkpoint)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "", 5, "a/b.safetensors"])
def test_an_index_may_not_name_files_elsewhere(checkpoint, name):
    index = {"weight_map": {"a.weight": name}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "bad file" in source_fault(checkpoint)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"weight_map": {}}', '{"weight_map": 3}', "[" * 100000])
def test_a_broken_index_is_named(checkpoint, text):
    (checkpoint / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json" in source_fault(checkpoint)


@pytest.mark.parametrize("text", ["", "[1]", "{", "\x00"])
def test_a_broken_config_is_named(checkpoint, text):
    (checkpoint / "config.json").write_text(text)
    assert "config.json" in source_fault(checkpoint)


def test_a_tensor_in_two_files_is_refused(checkpoint):
    (checkpoint / "model.safetensors.index.json").unlink()
    save_file(TENSORS, checkpoint / "model-00002-of-00002.safetensors")
    assert "two files" in source_fault(checkpoint)


def test_a_directory_without_weights_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="no safetensors"):
        SafetensorsSource.open(tmp_path)


def test_values_survive_through_numpy(checkpoint):
    source = SafetensorsSource.open(checkpoint)
    values = np.frombuffer(source.read("a.weight"), dtype="<f4").reshape(source.tensors()["a.weight"].shape)
    assert np.array_equal(values, TENSORS["a.weight"].numpy())
