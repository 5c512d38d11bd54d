"""The packed layout: its size is known without the library, and every block pattern survives it."""

from __future__ import annotations

import mmap
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benches.random_blocks import set_scales
from strata_kernels.binding import TYPES, load
from strata_kernels.native import NativeOps
from strata_kernels.ops import Weight
from strata_kernels.packing import packed_bytes
from strata_kernels.reference.quant import BLOCKS
from tests.support.op_cases import ALL_TYPES, FLOAT_TYPES, assert_close, linear, random, run, seen_by, values_of

QUANTISED = [name for name in ALL_TYPES if name not in FLOAT_TYPES]
SCALES = {"zero": 0.0, "subnormal": 2e-7, "large": 200.0, "minus": -0.01}
MINIMUMS = ("Q2_K", "Q4_1", "Q4_K", "Q5_1", "Q5_K", "I4_32", "I4_128", "I8_32", "I8_128")
FILLS = {"zeros": 0x00, "ones": 0xFF, "every byte": None, "random": -1}


@pytest.mark.parametrize("name", sorted(TYPES))
@pytest.mark.parametrize(("rows", "cols"), [(1, 256), (16, 512), (33, 1536), (5, 64), (5, 33)])
def test_packed_bytes_are_those_of_the_library(name, rows, cols):
    found = load().functions.llmrun_packed_bytes(TYPES[name], rows, cols)
    assert packed_bytes(name, rows, cols) == (None if found < 0 else found)


def test_a_type_without_kernels_has_no_packed_size():
    assert packed_bytes("Q8_1", 16, 32) is None


def test_the_kernels_have_every_type_of_the_reference():
    assert set(TYPES) == set(BLOCKS)


_LARGEST_POWER = (
    220  # of MXFP4: 2^92; an integer sum times 2^103 would leave f32 before the activations' scale is put on
)


def _blocks(name: str, count: int, fill: int | None, scale: float) -> np.ndarray:
    """Blocks of one byte value, of all byte values in turn or of random ones, their scale fields set."""
    size = BLOCKS[name].nbytes
    if fill == -1:
        stored = np.random.default_rng(4).integers(0, 256, (count, size), dtype=np.uint8)
    elif fill is None:
        stored = np.arange(count * size, dtype=np.uint64).astype(np.uint8).reshape(count, size)
    else:
        stored = np.full((count, size), fill, np.uint8)
    if name in ("MXFP4", "NVFP4"):  # every byte is a scale there
        if name == "MXFP4" and fill is not None:
            stored[:, 0] = {0.0: 0, 2e-7: 1, 200.0: _LARGEST_POWER}.get(scale, 120)
        stored[:, 0] = np.minimum(stored[:, 0], _LARGEST_POWER)
        return stored
    set_scales(stored, name, np.full((count, 1), scale))
    return stored


@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS.keys())
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES.keys())
@pytest.mark.parametrize("name", QUANTISED)
def test_blocks_at_the_ends_of_their_range_are_multiplied_and_looked_up(ops, name, scale, fill):
    rows, cols = 20, 512
    stored = _blocks(name, rows * cols // BLOCKS[name].elements, fill, scale)
    weight = Weight(name, rows, cols, torch.from_numpy(stored).reshape(rows, -1))
    matrix = values_of(weight)
    # full-scale activations of one sign, of alternating signs, and random ones: integer sums at their largest
    x = torch.stack([torch.ones(cols), torch.ones(cols) * (1 - 2 * (torch.arange(cols) % 2)), random(cols, seed=3)])
    got, seen = linear(ops, x, ops.pack(weight)), seen_by(ops, weight, x)
    assert torch.isfinite(got).all()
    # offsets of unsigned quants and minimums are summed as well: they count with their scale
    size = matrix.abs().amax() + (abs(scale) * 40 if name in MINIMUMS else 0)
    assert_close(got, seen @ matrix.T, (seen.abs().sum(1) * size)[:, None] + 1e-30, 3e-6)
    out = torch.empty(rows, cols)
    run(ops, lambda: ops.embed(torch.arange(rows, dtype=torch.int32), weight, out))
    assert_close(out, matrix, size, 1e-6)


@pytest.mark.parametrize("name", QUANTISED)
def test_no_row_of_a_group_touches_another(threaded_maker, name):
    """A matrix whose rows are all zero but one gives zeros but there, for each place in a group of 16."""
    ops, rows, cols = threaded_maker.make(2), 19, 256
    per_row = cols // BLOCKS[name].elements
    one = torch.from_numpy(_blocks(name, per_row, -1, 0.01)).reshape(1, -1)
    none = torch.from_numpy(_blocks(name, per_row, 0, 0.0)).reshape(1, -1)
    x = random(2, cols, seed=6)
    alone = linear(ops, x, ops.pack(Weight(name, 1, cols, one)))[:, 0]
    for place in (0, 7, 8, 15, 16, 18):
        data = none.repeat(rows, 1)
        data[place] = one[0]
        got = linear(ops, x, ops.pack(Weight(name, rows, cols, data)))
        assert torch.equal(got[:, place], alone)
        others = torch.cat([got[:, :place], got[:, place + 1 :]], 1)
        assert others.abs().max() <= 1e-30  # MXFP4 has no zero scale, only a tiny one


def _resident_bytes(path: Path) -> int:
    """Of this process's mapping of a file."""
    maps = Path("/proc/self/smaps").read_text(encoding="utf-8")
    found = re.search(re.escape(str(path)) + r"\n(?:.*\n)*?Rss:\s+(\d+) kB", maps)
    assert found
    return int(found[1]) << 10


@pytest.mark.skipif(sys.platform != "linux", reason="madvise of mapped files")
@pytest.mark.parametrize("rows", [16, 250, 2048])
def test_a_mapped_matrix_is_packed_in_pieces_and_its_pages_are_forgotten(tmp_path, monkeypatch, rows):
    cols, path = 1024, tmp_path / "weights"
    stored = np.random.default_rng(1).integers(0, 60, (rows, cols // 32 * 20), np.uint8)
    path.write_bytes(stored.tobytes())
    mapped = np.memmap(path, np.uint8, "r", shape=stored.shape)
    monkeypatch.setattr("strata_kernels.native._PIECE_BYTES", 64 << 10)
    ops = NativeOps(2)
    data = np.asarray(mapped)
    assert int(data.sum()) == int(stored.sum())  # now all of it is resident
    assert _resident_bytes(path) >= stored.nbytes // 2
    packed = ops.pack_mapped(Weight("Q4_1", rows, cols, data))
    assert _resident_bytes(path) <= 2 * mmap.PAGESIZE  # a page at either end may be another tensor's as well
    assert np.array_equal(packed.data, ops.pack(Weight("Q4_1", rows, cols, stored)).data)
