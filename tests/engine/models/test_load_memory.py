"""Loading streams: its peak is what stays and the work on one tensor; what cannot fit is refused before it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from benches.load_memory import config_for, measure, write_checkpoint
from strata_engine.config import EngineConfig
from strata_engine.errors import CorruptFile, OutOfMemory
from strata_engine.runtime.opening import open_parts
from tests.support.engines import ReferenceBackend, model_files


@pytest.mark.parametrize("kind", ["gptq", "bf16"])
def test_the_peak_is_what_stays_and_one_tensor(tmp_path, kind):
    """Some 100 and 200 MB in a process of its own: neither the file nor a second copy of it is resident at any time."""
    size = write_checkpoint(tmp_path, config_for(0.11 if kind == "gptq" else 0.2, kind))
    found = measure(tmp_path)
    assert found["held_bytes"] > 0.9 * size
    allowed = 3 * found["largest_bytes"] + (40 << 20)
    assert found["over_bytes"] < allowed < size


def resident_bytes() -> int:
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * 4096


def test_20_gigabytes_of_nothing_are_refused_before_they_are_read(tmp_path):
    size = write_checkpoint(tmp_path, config_for(20, "bf16"), sparse=True)
    assert size > 19e9
    before = resident_bytes()
    with pytest.raises(OutOfMemory, match="needed") as caught:
        open_parts(model_files(tmp_path), EngineConfig(), ReferenceBackend(free_bytes=12 << 30))
    assert caught.value.details["needed_bytes"] > size
    assert resident_bytes() - before < 64 << 20


def test_a_truncated_file_is_refused_before_anything_is_priced(tmp_path):
    write_checkpoint(tmp_path, config_for(20, "bf16"), sparse=True)
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    with pytest.raises(CorruptFile, match="ends at byte"):
        open_parts(model_files(tmp_path), EngineConfig(), ReferenceBackend(free_bytes=1))
