"""The GGUF header check: types of values, limits, names of faults beyond the case log."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf as gguf_package
import pytest

from strata_engine.errors import CorruptFile, NotFound, UsageError
from strata_engine.formats.gguf_header import parse_header
from strata_engine.formats.gguf_types import REMOVED_IDS, TYPES_BY_ID
from strata_engine.formats.gguf_values import StringArray
from strata_engine.formats.headers import read_gguf_header
from tests.support.gguf_bytes import LLAMA, gguf, key, key_array, key_text, key_u32, tensor, text

ONE = tensor("t", [32])
DATA = b"\0" * 128


def parse(data: bytes, **options):
    return parse_header(memoryview(data), Path("x.gguf"), **options)


def fault(data: bytes) -> str:
    with pytest.raises(CorruptFile) as caught:
        parse(data)
    return caught.value.message


@pytest.mark.parametrize(
    ("type_id", "packed", "value"),
    [
        (0, struct.pack("<B", 200), 200),
        (1, struct.pack("<b", -3), -3),
        (2, struct.pack("<H", 60000), 60000),
        (3, struct.pack("<h", -300), -300),
        (4, struct.pack("<I", 1 << 31), 1 << 31),
        (5, struct.pack("<i", -70000), -70000),
        (6, struct.pack("<f", 1.5), 1.5),
        (7, b"\1", True),
        (8, text("äöü"), "äöü"),
        (10, struct.pack("<Q", 1 << 63), 1 << 63),
        (11, struct.pack("<q", -(1 << 40)), -(1 << 40)),
        (12, struct.pack("<d", 0.1), 0.1),
    ],
)
def test_every_value_type_is_read_alone_and_in_arrays(type_id, packed, value):
    entries = [
        LLAMA,
        key("a", type_id, packed),
        key_array("b", type_id, 3, packed * 3),
        key_array("c", type_id, 0, b""),
    ]
    metadata = parse(gguf(entries, [ONE], DATA)).metadata
    assert metadata["a"] == value
    assert type(metadata["a"]) is type(value)
    assert metadata["b"] == [value] * 3
    assert metadata["c"] == []


def test_arrays_may_nest_four_deep():
    inner = struct.pack("<IQ", 4, 2) + struct.pack("<II", 1, 2)
    for _ in range(3):
        inner = struct.pack("<IQ", 9, 1) + inner
    assert parse(gguf([LLAMA, key("a", 9, inner)], [ONE], DATA)).metadata["a"] == [[[[1, 2]]]]


def test_a_fifth_level_of_nesting_is_refused():
    inner = struct.pack("<IQ", 4, 1) + struct.pack("<I", 1)
    for _ in range(4):
        inner = struct.pack("<IQ", 9, 1) + inner
    assert "nested" in fault(gguf([LLAMA, key("a", 9, inner)], [ONE], DATA))


def test_a_vocabulary_of_a_quarter_million_tokens_is_parsed():
    tokens = b"".join(text(f"token{n}") for n in range(248_000))
    data = gguf([LLAMA, key_array("tokenizer.ggml.tokens", 8, 248_000, tokens)], [ONE], DATA)
    header = parse(data)
    assert header.metadata["tokenizer.ggml.tokens"][247_999] == "token247999"


def test_a_string_array_behaves_as_a_sequence():
    array = StringArray(text("a") + text(b"\xff") + text("c"), 3)
    assert len(array) == 3
    assert list(array) == ["a", "\ufffd", "c"]
    assert array[1:] == ["\ufffd", "c"]
    assert array == ["a", "\ufffd", "c"]
    assert array != ["a"]


def test_tensor_shapes_are_rows_first_and_offsets_absolute():
    data = gguf([LLAMA], [tensor("a", [64, 2, 3], 2), tensor("b", [32], 0, 224)], b"\0" * 352)
    header = parse(data)
    a, b = header.tensors["a"], header.tensors["b"]
    assert (a.shape, a.type, a.nbytes, a.offset) == ((3, 2, 64), "Q4_0", 216, header.data_start)
    assert (b.offset, b.nbytes) == (header.data_start + 224, 128)


@pytest.mark.parametrize("storage", TYPES_BY_ID.values(), ids=lambda storage: storage.name)
def test_every_storage_type_is_listed_with_its_size(storage):
    data = gguf([LLAMA], [tensor("t", [storage.elements * 2, 3], storage.id)], b"\0" * storage.nbytes * 6)
    meta = parse(data).tensors["t"]
    assert (meta.type, meta.nbytes) == (storage.name, storage.nbytes * 6)


def test_the_type_table_agrees_with_the_gguf_package():
    sizes = {int(kind): (kind.name, *size) for kind, size in gguf_package.GGML_QUANT_SIZES.items()}
    ours = {kind.id: (kind.name, kind.elements, kind.nbytes) for kind in TYPES_BY_ID.values()}
    # Q8_1: the package counts two f32 per block, the format two f16
    differing = {name for number, (name, *_) in sizes.items() if ours[number] != sizes[number]}
    assert differing <= {"Q8_1"}


@pytest.mark.parametrize("type_id", sorted(REMOVED_IDS))
def test_a_removed_storage_type_is_named_as_removed(type_id):
    assert "removed" in fault(gguf([LLAMA], [tensor("t", [256], type_id)], b"\0" * 1024))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gguf([LLAMA], [tensor("t", [32], 99)], DATA), ["'t'", "99", "unknown"]),
        (gguf([LLAMA], [tensor("t", [33], 2)], DATA), ["'t'", "33", "Q4_0", "32"]),
        (gguf([LLAMA], [tensor("t", [1, 1, 1, 1, 1])], DATA), ["'t'", "5 dims"]),
        (gguf([LLAMA], [tensor("t", [])], DATA), ["'t'", "0 dims"]),
        (gguf([LLAMA], [tensor("", [32])], DATA), ["empty name"]),
        (gguf([LLAMA], [tensor("t", [32], 0, 8)], DATA * 2), ["'t'", "offset 8", "32"]),
        (gguf([LLAMA], [tensor("t", [1 << 62, 1 << 62])], DATA), ["'t'", "bytes"]),
        (gguf([key_u32("general.architecture", 1)], [ONE], DATA), ["general.architecture"]),
        (gguf([key_text("general.architecture", "")], [ONE], DATA), ["general.architecture"]),
        (gguf([LLAMA, key("k", 77, b"")], [ONE], DATA), ["'k'", "77"]),
        (gguf([LLAMA, key_array("k", 77, 1, b"x")], [ONE], DATA), ["'k'", "77"]),
        (gguf([LLAMA, key_array("k", 8, 3, text("a"))], [ONE], DATA), ["'k'"]),
        (gguf([LLAMA, text(b"\xff\xfe") + b"\0" * 5], [ONE], DATA), ["UTF-8"]),
        (gguf([LLAMA, text("k" * 65536) + b"\0" * 5], [ONE], DATA), ["65536"]),
        (gguf([LLAMA, key_u32("split.no", 3), key_u32("split.count", 3)], [ONE], DATA), ["split.no", "3"]),
        (gguf([LLAMA, key_text("split.no", "x")], [ONE], DATA), ["split.no"]),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 60), ["keys"]),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1) + LLAMA, ["tensors"]),
    ],
)
def test_a_fault_is_named(data, words):
    message = fault(data)
    assert all(word in message for word in words), message


def test_an_error_carries_the_file_and_the_offset():
    with pytest.raises(CorruptFile) as caught:
        parse(gguf([LLAMA], [tensor("t", [0])], DATA))
    assert caught.value.details["file"] == "x.gguf"
    assert caught.value.details["offset"] > 24


def test_a_huge_string_length_is_refused_at_once():
    items = struct.pack("<Q", (1 << 64) - 1)
    assert "'k'" in fault(gguf([LLAMA, key_array("k", 8, 1, items)], [ONE], DATA))


def test_a_file_with_a_vocabulary_only_is_refused_as_a_model_and_readable_as_a_vocabulary():
    data = gguf([LLAMA, key_text("tokenizer.ggml.model", "gpt2")], [])
    assert "no tensors" in fault(data)
    assert parse(data, need_tensors=False).metadata["tokenizer.ggml.model"] == "gpt2"


def test_version_two_is_read():
    assert parse(gguf([LLAMA], [ONE], DATA, version=2)).version == 2


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="absent"):
        read_gguf_header(tmp_path / "absent.gguf")


def test_a_directory_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="directory"):
        read_gguf_header(tmp_path)


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(UsageError, match="regular"):
        read_gguf_header(tmp_path / "pipe.gguf")
