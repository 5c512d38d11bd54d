"""Machine code of the attention kernels for gfx1100, whose registers are the scarcest: no spills, matrix units, LDS."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from strata_kernels.gpu.arrays import DeviceArray
from strata_kernels.gpu.compile import ensure_kernels
from strata_kernels.gpu.launch import Launch, Variant
from strata_kernels.gpu.ops import GpuOps
from strata_kernels.gpu.planning import PlanAllocator, PlannedStep
from strata_kernels.ops import KvLayer, Rows, value_row_bytes

pytestmark = pytest.mark.slow  # 3 s a kernel


class Noting:
    """A launcher that notes variants."""

    def __init__(self) -> None:
        self.variants: list[Variant] = []

    def prepare(self, launches: Sequence[Launch]) -> PlannedStep:
        self.variants += [launch.variant for launch in launches]
        return PlannedStep()


def variants_of(keys: str, values: str, heads: int, kv_heads: int, width: int) -> list[Variant]:
    """Of a step of one row and of a prompt, over pages of 32 tokens."""
    noting = Noting()
    ops = GpuOps(noting, PlanAllocator())

    def array(*shape: int, dtype: str) -> DeviceArray:
        return DeviceArray(ops.allocator.allocate(1 << 20), 0, shape, dtype)

    shape = (64, kv_heads, 32)
    stored = value_row_bytes(width) if values == "u8" else width
    scales = [array(*shape, dtype="f32") if kind == "i8" else None for kind in (keys, values)]
    cache = KvLayer(array(*shape, width, dtype=keys), array(*shape, stored, dtype=values), *scales)
    for count in (1, 64):
        numbers = array(count, dtype="i32")
        rows = Rows(numbers, numbers, numbers, array(4, 64, dtype="i32"))
        q, k, out = (array(count, n, width, dtype="f32") for n in (heads, kv_heads, heads))
        ops.kv_store(k, k, cache, rows)
        ops.attention(q, cache, rows, 0.1, out)
    return list(dict.fromkeys(noting.variants))


@pytest.mark.parametrize(
    ("keys", "values", "heads", "kv_heads", "width"),
    [("f16", "f16", 9, 3, 64), ("i8", "i8", 32, 4, 128), ("i8", "u8", 24, 2, 256), ("f32", "f32", 16, 16, 72)],
)
def test_attention_fits_its_registers(
    tmp_path: Path, keys: str, values: str, heads: int, kv_heads: int, width: int
) -> None:
    wanted = variants_of(keys, values, heads, kv_heads, width)
    assert {v.kernel for v in wanted} == {"kv_store", "attention_split", "attention_join", "attention_prompt"}
    for outcome in ensure_kernels(wanted, "gfx1100", tmp_path, jobs=1):
        assert outcome.entry is not None
        figures = outcome.entry.figures
        assert figures["spills"] == 0, outcome.variant.key
        assert outcome.entry.shared <= 65536
        products = outcome.variant.kernel in ("attention_split", "attention_prompt")
        assert (figures["matrix"] > 0) == products
