"""Every malformed file of the case log gives its wanted outcome, fast and without using memory."""

from __future__ import annotations

import hashlib
import json
import time
import tracemalloc
from pathlib import Path

import pytest

from strata_engine.errors import CorruptFile
from strata_engine.formats.headers import read_gguf_header, read_header
from strata_engine.formats.open import open_weights

CASES = json.loads((Path(__file__).parents[2] / "vectors" / "gguf" / "cases.json").read_text(encoding="utf-8"))
BY_ID = pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])


def build(case: dict, folder: Path) -> Path:
    data = b"".join(bytes.fromhex(part) * times for part, times in case["parts"])
    assert hashlib.sha256(data).hexdigest() == case["sha256"]
    path = folder / "case.gguf"
    path.write_bytes(data)
    return path


def outcome(path: Path, read) -> tuple[str, str]:
    """(outcome, everything said)."""
    try:
        result = read(path)
    except CorruptFile as error:
        assert error.exit_code == 6
        return "error", f"{error.message} {error.hint}"
    return ("ok_with_warning" if result.warnings else "ok"), " ".join(result.warnings)


def test_the_case_file_is_whole():
    assert len(CASES) == 30


# these readers accept both kinds of file: the safetensors case is for the GGUF reader alone, below
@pytest.mark.parametrize("read", [read_header, open_weights])
@pytest.mark.parametrize("case", [c for c in CASES if c["id"] != "safetensors"], ids=lambda case: case["id"])
def test_a_case_gives_its_wanted_outcome(case, read, tmp_path):
    path = build(case, tmp_path)
    start = time.perf_counter()
    got, said = outcome(path, read)
    assert time.perf_counter() - start < 10 * case["expect"].get("within_s", 2)  # ten times: the machine may be busy
    wanted = case["expect"]
    assert got == wanted["outcome"] or wanted["outcome"] == "ok_or_error"
    assert all(word in said for word in wanted.get("says", []))


def test_a_safetensors_file_given_as_gguf_is_named(tmp_path):
    case = next(case for case in CASES if case["id"] == "safetensors")
    got, said = outcome(build(case, tmp_path), read_gguf_header)
    assert (got, "safetensors" in said) == ("error", True)


@BY_ID
def test_a_case_needs_no_more_memory_than_a_few_times_the_file(case, tmp_path):
    path = build(case, tmp_path)
    tracemalloc.start()
    try:
        outcome(path, read_header)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * case["size"] + 100_000  # the constant: mapping, exception and message
