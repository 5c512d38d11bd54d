"""Every maker of operations that this machine can run, for the shared tests: the reference, and each native build."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

from strata_backends.base import Profile
from strata_backends.gpu import Place
from strata_backends.gpu_ops import gpu_ops
from strata_backends.probe import choose
from strata_kernels.binding import library_path, load
from strata_kernels.gpu.arrays import HostAllocator
from strata_kernels.gpu.interpreted import InterpretedLauncher
from strata_kernels.gpu.ops import GpuOps
from strata_kernels.native import NativeOps
from strata_kernels.ops import Ops
from strata_kernels.reference.ops import ReferenceOps
from tests.support.ferry import Building, Ferry

# Shared test modules that the GPU's kernels pass in Triton's interpreter: by "default", or by `pytest -m long` only
# (each kernel has small tests of its own in test_gpu_*.py, which always run).
INTERPRETED = {
    "test_ops_argmax": "default",
    "test_ops_delta": "long",
    "test_ops_drafts": "long",
    "test_ops_elementwise": "default",
    "test_ops_embed": "long",
    "test_ops_linear": "long",
    "test_ops_norm": "default",
    "test_ops_rope": "default",
    "test_ops_attention": "long",
    "test_ops_sparse": "long",
    "test_ops_streams": "long",
    "test_ops_tower": "long",
}
# Their kernels stay inside their arrays but report nothing: the engine hands out no index that is outside.
UNREPORTED = (
    "test_put_rows_refuses_an_index_outside",
    "test_a_slot_that_is_not_there_is_refused",
    "test_a_sequence_that_is_not_there_is_refused",
    "test_impossible_numbers_of_rows_are_refused",
    "test_a_block_that_cannot_be_seen_is_an_error",
    "test_a_slot_outside_the_index_is_an_error",
    "test_a_state_slot_outside_the_memory_is_an_error",
    # tables in mapped files stay with the host
    "test_rows_come_out_of_shards_of_every_type",
    "test_a_row_outside_the_shards_is_an_error",
    "test_a_table_larger_than_memory_is_read_where_it_is_asked",
)


@dataclass(frozen=True)
class Maker:
    """A way to make operations. `absent`: why it cannot be made here ("" = it can)."""

    name: str
    make: Callable[[int], Ops]  # thread count -> Ops
    threaded: bool = True
    absent: str = ""


def makers() -> list[Maker]:
    """The reference, the native builds, the GPU's kernels in Triton's interpreter and, if one is named, on a GPU."""
    plain = Maker("reference", lambda threads: ReferenceOps(), threaded=False)
    device = os.environ.get("LLMRUN_TEST_DEVICE")
    return [plain, *native_makers(), triton_maker(), *([device_maker(device)] if device else [])]


def device_maker(device: str) -> Maker:
    """A GPU by the name that --device takes ("cuda:0"); its kernels are compiled as they are needed."""
    return Maker("device", lambda threads: Ferry(on_device(device)), threaded=False)


@cache
def on_device(device: str) -> GpuOps:
    """Operations on the GPU of this name. Raises RuntimeError with every verdict when there is none."""
    root = Path(tempfile.gettempdir()) / "llmrun-test-kernels"
    backend, verdicts = choose(device, Place(make_ops=gpu_ops(root)))
    if backend is None:
        raise RuntimeError("; ".join(f"{one.name}: {one.reason}" for one in verdicts))
    ops = backend.ops(Profile()).ops
    assert isinstance(ops, GpuOps)
    return GpuOps(Building(ops.launcher, ops.build), ops.allocator)


def triton_maker() -> Maker:
    """The GPU's operations on host memory, every launch interpreted."""
    absent = "" if find_spec("triton") else "triton is not installed"
    return Maker(
        "triton", lambda threads: GpuOps(InterpretedLauncher(), HostAllocator()), threaded=False, absent=absent
    )


def native_makers() -> list[Maker]:
    """One maker a native build this CPU can run; one absent maker when the library was not built.

    A library that is there but does not load is a failure, not a reason to skip.
    """
    if not library_path().exists():
        return [Maker("native", lambda threads: NativeOps(threads), absent=f"{library_path().name} was not built")]
    usable = [isa for isa, refused in load().builds if not refused]
    return [Maker(f"native-{isa}-{bits}", partial(_native, isa, bits)) for isa in usable for bits in (16, 8)]


def _native(isa: str, bits: int, threads: int) -> Ops:
    return NativeOps(threads, isa, activation_bits=bits)
