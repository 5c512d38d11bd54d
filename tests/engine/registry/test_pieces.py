"""Small parts of the registry: byte ranges, shard and quant names, zip directories, rate and waits."""

from __future__ import annotations

import io
import struct
import threading
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_engine.errors import CorruptFile, NotFound
from strata_engine.registry.entries import CatalogFile, sha256_or_nothing
from strata_engine.registry.journal import Origin, Part, discard, good_bytes, read_record, record_path
from strata_engine.registry.limits import Patience, RateLimit
from strata_engine.registry.ranges import Ranges
from strata_engine.registry.roles import odd_shard, role_of, shard_of
from strata_engine.registry.selection import matches_quant, quant_of, select
from strata_engine.registry.zip_member import find_member, unpack
from tests.support.fake_hub import wheel

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


@given(SPANS, st.integers(0, 60), st.integers(0, 60))
def test_ranges_behave_as_a_set_of_positions(spans: list[tuple[int, int]], start: int, end: int):
    ranges, positions = Ranges(), set()
    for a, b in spans:
        ranges.add(a, b)
        positions |= set(range(a, b))
    assert ranges.total == len(positions)
    assert {p for a, b in ranges.pairs() for p in range(a, b)} == positions
    assert {p for a, b in ranges.missing(start, end) for p in range(a, b)} == set(range(start, end)) - positions
    pairs = ranges.pairs()
    assert all(a < b for a, b in pairs)
    assert all(left[1] < right[0] for left, right in zip(pairs, pairs[1:], strict=False))


@pytest.mark.parametrize(("path", "quant", "fits"), [
    ("x-Q4_K_M.gguf", "Q4_K_M", True), ("x-Q4_K_M.gguf", "q4_k_m", True), ("x-Q4_K_M.gguf", "Q4_K", False),
    ("x.Q4_K_M.gguf", "Q4_K_M", True), ("x_Q8_0.gguf", "Q8_0", True), ("x-IQ4_XS.gguf", "Q4_XS", False),
    ("Q5_K_M/x-00001-of-00002.gguf", "Q5_K_M", True), ("x-Q8_0.gguf", "Q8", False), ("x-BF16.gguf", "F16", False),
])  # fmt: skip
def test_a_quant_fits_at_a_word_edge_in_any_case(path: str, quant: str, fits: bool):
    assert matches_quant(path, quant) is fits


@pytest.mark.parametrize(("path", "quant"), [("x-Q4_K_M.gguf", "Q4_K_M"), ("x-UD-Q4_K_S.gguf", "UD-Q4_K_S"),
                         ("IQ3_S/y-00001-of-00002.gguf", "IQ3_S"), ("plain.gguf", ""),
                         ("m.f16.gguf", "F16")])  # fmt: skip
def test_the_quant_of_a_file_is_read_from_its_name(path: str, quant: str):
    assert quant_of(path) == quant


def files(*paths: str) -> list[CatalogFile]:
    return [CatalogFile(p) for p in paths]


def test_the_plain_quant_is_taken_where_a_mix_has_it_in_its_name():
    chosen, variant = select(files("x-Q4_K_S.gguf", "x-UD-Q4_K_S.gguf"), "Q4_K_S", "u/r")
    assert [f.path for f in chosen] == ["x-Q4_K_S.gguf"]
    assert variant == "Q4_K_S"


def test_the_default_quant_is_q4_k_m_else_the_only_file():
    assert select(files("x-Q8_0.gguf", "x-Q4_K_M.gguf"), "", "u/r")[1] == "Q4_K_M"
    assert select(files("only.gguf", "mmproj-F16.gguf"), "", "u/r")[0] == files("only.gguf")


def test_a_file_named_by_its_path_brings_its_shards():
    names = [f"d/x-0000{i}-of-00002.gguf" for i in (1, 2)]
    chosen, _ = select(files(*names, "other.gguf"), names[1], "u/r")
    assert [f.path for f in chosen] == names


def test_a_repository_without_gguf_has_no_quants():
    with pytest.raises(NotFound, match="holds no GGUF"):
        select(files("config.json", "model.safetensors"), "Q4_K_M", "u/r")


@pytest.mark.parametrize(("name", "role"), [("x.gguf", "weights"), ("mmproj-x.gguf", "mmproj"), ("mtp-x.gguf", "draft"),
                         ("tokenizer.json", "tokenizer"), ("config.json", "config"),
                         ("chat_template.jinja", "template"), ("README.md", ""), ("model.bin", ""),
                         ("..", "")])  # fmt: skip
def test_a_name_tells_the_role(name: str, role: str):
    assert role_of(name) == role


def test_only_well_formed_shard_names_count():
    shard = shard_of("x-00002-of-00003.gguf")
    assert shard is not None
    assert (shard.stem, shard.index, shard.count, shard.name(1)) == ("x", 2, 3, "x-00001-of-00003.gguf")
    assert shard_of("x-00004-of-00003.gguf") is None
    assert shard_of("x-2-of-3.gguf") is None
    assert odd_shard("x-2-of-3.gguf") is not None
    assert odd_shard("x-00002-of-00003.gguf") is None


@pytest.mark.parametrize(
    ("text", "kept"), [("AB" * 32, "ab" * 32), ("../../x", ""), (None, ""), ("ab" * 31, ""), (7, "")]
)
def test_only_a_sha256_may_become_a_file_name(text: object, kept: str):
    assert sha256_or_nothing(text) == kept


def reader(data: bytes):
    return lambda start, end: data[start:end]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_member_unpacks_to_its_content(tmp_path: Path, method: int):
    body = bytes(range(256)) * 5000
    data = wheel({"a/b.txt": b"other", "a/m.bin": body}, method)
    member = find_member(reader(data), len(data), "a/m.bin", "w")
    seen: list[int] = []
    unpack(io.BytesIO(data[member.offset :]), member, tmp_path / "out", seen.append)
    assert (tmp_path / "out").read_bytes() == body
    assert seen[-1] == len(body)


def test_a_member_behind_a_long_comment_and_other_members_is_found():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for i in range(2000):
            archive.writestr(f"folder/{i}.txt", str(i))
        archive.comment = b"c" * 60_000
    data = stream.getvalue()
    assert find_member(reader(data), len(data), "folder/1234.txt", "w").size == 4


def test_a_zip64_archive_is_understood(tmp_path: Path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive, archive.open("m", "w", force_zip64=True) as member_stream:
        member_stream.write(b"hello")
    data = stream.getvalue()
    # The same directory, with the 64-bit records that a file above 4 GiB has.
    end = data.rfind(b"PK\x05\x06")
    count, length, start = struct.unpack_from("<H", data, end + 10)[0], *struct.unpack_from("<II", data, end + 12)
    record = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, length, start)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    tail = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    wide = data[:end] + record + locator + tail
    member = find_member(reader(wide), len(wide), "m", "w")
    unpack(io.BytesIO(wide[member.offset :]), member, tmp_path / "out", lambda _done: None)
    assert (tmp_path / "out").read_bytes() == b"hello"


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_archive_never_does_more_than_raise(at: int, value: int):
    good = wheel({"a.txt": b"1" * 50, "m.bin": b"2" * 100})
    data = bytearray(good)
    data[at % len(data)] = value
    try:
        member = find_member(reader(bytes(data)), len(data), "m.bin", "w")
    except (CorruptFile, NotFound):
        return
    assert member.offset + member.packed <= len(data)


def test_a_member_that_claims_too_little_is_cut_off(tmp_path: Path):
    data = bytearray(wheel({"m": bytes(10_000_000)}))
    at = data.rfind(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 1000)
    member = find_member(reader(bytes(data)), len(data), "m", "w")
    with pytest.raises(CorruptFile, match="more than the 1000 bytes"):
        unpack(io.BytesIO(bytes(data[member.offset :])), member, tmp_path / "out", lambda _done: None)


def test_a_part_goes_on_only_for_the_same_version(tmp_path: Path):
    path = tmp_path / "x.part"
    origin = Origin("http://h/x?key=1", '"v1"', 100, "")
    part = Part(path, origin)
    part.open()
    part.write(10, b"a" * 20)
    part.save()
    part.close()
    assert good_bytes(path) == 20
    for other in (Origin("http://h/x?key=2", '"v1"', 100, ""),):
        again = Part(path, other)
        again.open()
        assert again.done_bytes == 20
        again.close()
    for other in (Origin("http://h/x", '"v2"', 100, ""), Origin("http://h/y", '"v1"', 100, ""),
                  Origin("http://h/x", '"v1"', 101, ""), Origin("http://h/x", '"v1"', 100, "ab")):  # fmt: skip
        assert not other.continues(origin)


def test_a_record_that_promises_more_than_the_file_holds_is_not_believed(tmp_path: Path):
    path = tmp_path / "x.part"
    path.write_bytes(b"1" * 10)
    for ranges in ("[[0, 11]]", "[[5, 5]]", "[[-1, 3]]", "[1]", "7"):
        record_path(path).write_text(
            f'{{"version": 1, "url": "u", "identity": "", "size": 20, "sha256": "", "ranges": {ranges}}}'
        )
        assert read_record(path) is None
    discard(path)
    discard(path)
    assert list(tmp_path.iterdir()) == []


def test_waits_double_up_to_a_limit_and_never_undercut_the_server():
    patience = Patience(first_wait_s=1.0, longest_wait_s=4.0)
    assert 0.8 <= patience.wait_s(1, 0) <= 1.2
    assert 1.6 <= patience.wait_s(2, 0) <= 2.4
    assert 3.2 <= patience.wait_s(9, 0) <= 4.8
    assert patience.wait_s(1, 30.0) == 30.0


def test_a_stopped_transfer_does_not_wait_for_its_rate():
    stop = threading.Event()
    limit = RateLimit(1.0, stop)
    limit.take(1)
    stop.set()
    limit.take(3600)  # returns at once
