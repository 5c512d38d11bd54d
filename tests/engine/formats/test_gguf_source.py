"""GgufSource: reading through the map, split models whole and incomplete, closing."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from strata_engine.errors import CorruptFile, NotFound
from strata_engine.formats.gguf import GgufSource
from tests.support.gguf_bytes import LLAMA, gguf, key_u32, tensor
from tests.support.tiny_gguf import encode, write_gguf

RANDOM = np.random.default_rng(7)
TENSORS = {f"blk.{n}.w.weight": RANDOM.standard_normal((4, 256), dtype=np.float32) for n in range(5)}


@pytest.fixture
def parts(tmp_path):
    return write_gguf(tmp_path / "model.gguf", "llama", {"{a}.block_count": 5}, TENSORS, "Q4_0", splits=3)


@pytest.mark.parametrize(
    "type_name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
)
def test_the_bytes_read_are_those_another_writer_wrote(tmp_path, type_name):
    (path,) = write_gguf(tmp_path / "m.gguf", "llama", {"general.name": "x"}, TENSORS, type_name, tokenizer=True)
    source = GgufSource([path])
    assert source.metadata()["general.name"] == "x"
    assert len(source.metadata()["tokenizer.ggml.tokens"]) == 300
    for name, values in TENSORS.items():
        meta = source.tensors()[name]
        assert (meta.shape, meta.type, meta.path) == ((4, 256), type_name, path)
        assert bytes(source.read(name)) == encode(values, type_name).tobytes()
    source.close()


def test_what_is_read_cannot_be_written_to(parts):
    source = GgufSource(parts[:1])
    assert source.read("blk.0.w.weight").readonly


def test_an_unknown_tensor_is_not_found(parts):
    with pytest.raises(NotFound, match="nothing"):
        GgufSource(parts[:1]).read("nothing")


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_finds_the_others(parts, given):
    source = GgufSource([parts[given]])
    assert source.paths == tuple(parts)
    assert list(source.tensors()) == list(TENSORS)
    assert source.metadata()["llama.block_count"] == 5
    assert source.metadata()["split.no"] == 0
    assert bytes(source.read("blk.4.w.weight")) == encode(TENSORS["blk.4.w.weight"], "Q4_0").tobytes()


def test_all_parts_may_be_given_in_any_order_under_any_name(parts, tmp_path):
    renamed = [shutil.copy(part, tmp_path / f"blob{n}") for n, part in enumerate(parts)]
    source = GgufSource([renamed[2], renamed[0], renamed[1]])
    assert source.paths == tuple(renamed)
    assert list(source.tensors()) == list(TENSORS)


def fault(paths) -> str:
    with pytest.raises(CorruptFile) as caught:
        GgufSource(paths)
    assert caught.value.exit_code == 6
    assert caught.value.hint
    return caught.value.message


@pytest.mark.parametrize("absent", [1, 2])
def test_a_missing_part_is_named(parts, absent):
    parts[absent].unlink()
    assert parts[absent].name in fault(parts[:1])


def test_a_missing_first_part_is_named(parts):
    parts[0].unlink()
    assert parts[0].name in fault(parts[2:])


def test_an_oddly_named_part_is_told_what_its_name_must_be(parts, tmp_path):
    odd = parts[1].rename(tmp_path / "model-2-of-3.gguf")
    assert "-00002-of-00003.gguf" in fault([odd])
    assert parts[1].name in fault(parts[:1])


def test_parts_with_swapped_names_are_refused(parts, tmp_path):
    spare = tmp_path / "spare"
    parts[1].rename(spare)
    parts[2].rename(parts[1])
    spare.rename(parts[2])
    assert "named as part 3, its header says it is part 2" in fault(parts[:1])


def test_a_part_copied_over_another_is_refused(parts):
    shutil.copy(parts[1], parts[2])
    assert "same part" in fault(parts[:1])


def test_a_name_that_claims_more_parts_than_the_header_is_refused(parts, tmp_path):
    odd = parts[0].rename(tmp_path / "model-00001-of-00004.gguf")
    message = fault([odd])
    assert "4 parts" in message
    assert "split.count 3" in message


def test_a_whole_model_under_the_name_of_a_part_is_refused(tmp_path):
    (path,) = write_gguf(tmp_path / "model-00001-of-00002.gguf", "llama", {}, TENSORS)
    assert "split.count" in fault([path])


def test_parts_given_without_one_of_them_name_its_number(parts):
    assert "missing part 2" in fault([parts[0], parts[2]])


def test_two_whole_models_are_not_one(tmp_path):
    paths = [write_gguf(tmp_path / f"{name}.gguf", "llama", {}, TENSORS)[0] for name in "ab"]
    assert "not parts of a split model" in fault(paths)


def test_parts_of_different_models_are_refused(parts, tmp_path):
    other = write_gguf(tmp_path / "other.gguf", "llama", {}, TENSORS, splits=2)
    assert "disagree" in fault([parts[0], other[1]])


def test_a_tensor_in_two_parts_is_refused(tmp_path):
    for number in range(2):
        keys = [LLAMA, key_u32("split.no", number), key_u32("split.count", 2)]
        (tmp_path / f"m-0000{number + 1}-of-00002.gguf").write_bytes(gguf(keys, [tensor("t", [8])], b"\0" * 32))
    assert "'t'" in fault([tmp_path / "m-00001-of-00002.gguf"])


def test_a_tensor_count_that_does_not_add_up_is_refused(tmp_path):
    for number in range(2):
        keys = [LLAMA, key_u32("split.no", number), key_u32("split.count", 2), key_u32("split.tensors.count", 3)]
        (tmp_path / f"m-0000{number + 1}-of-00002.gguf").write_bytes(
            gguf(keys, [tensor(f"t{number}", [8])], b"\0" * 32)
        )
    message = fault([tmp_path / "m-00001-of-00002.gguf"])
    assert "3 tensors" in message
    assert "hold 2" in message


def test_a_first_part_without_tensors_is_accepted(tmp_path):
    first = [LLAMA, key_u32("split.no", 0), key_u32("split.count", 2)]
    second = [key_u32("split.no", 1), key_u32("split.count", 2)]
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(gguf(first, []))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(gguf(second, [tensor("t", [8])], b"\1" * 32))
    source = GgufSource([tmp_path / "m-00002-of-00002.gguf"])
    assert bytes(source.read("t")) == b"\1" * 32


def test_a_damaged_part_is_named(parts):
    parts[1].write_bytes(parts[1].read_bytes()[:-64])
    assert parts[1].name in fault(parts[:1])


def test_a_view_outlives_close_and_reading_after_close_is_refused(parts):
    source = GgufSource(parts[:1])
    view = source.read("blk.0.w.weight")
    wanted = encode(TENSORS["blk.0.w.weight"], "Q4_0").tobytes()
    source.close()
    assert bytes(view) == wanted
    with pytest.raises(ValueError, match="closed"):
        source.read("blk.0.w.weight")


def test_no_file_stays_open_after_a_fault(parts):
    import os

    before = len(os.listdir("/proc/self/fd"))
    parts[2].write_bytes(b"GGUF")
    fault(parts[:1])
    assert len(os.listdir("/proc/self/fd")) == before
