"""The native library itself: builds and their choice, the ABI check, threads, fork, exit, mapped pages."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from strata_kernels import binding
from strata_kernels.binding import KernelsUnavailable, load
from strata_kernels.native import NativeOps
from strata_kernels.ops import Weight

ROOT = Path(__file__).parents[2]


def _sum_of_two(ops: NativeOps, count: int = 1 << 16) -> float:
    out = torch.empty(count)
    ops.add(torch.ones(count), torch.ones(count), out)
    return out.sum().item() / count


def test_each_usable_build_can_be_forced_and_says_its_name():
    for name, refused in load().builds:
        if refused:
            with pytest.raises(KernelsUnavailable, match=name):
                NativeOps(1, name)
        else:
            assert NativeOps(1, name).isa == name


def test_the_last_usable_build_is_the_default():
    usable = [name for name, refused in load().builds if not refused]
    assert NativeOps(1).isa == usable[-1]


def test_an_unknown_build_is_refused_by_name():
    with pytest.raises(KernelsUnavailable, match="build sse9: not in this library"):
        NativeOps(1, "sse9")


@pytest.mark.parametrize("threads", [0, -1])
def test_a_thread_count_below_one_is_refused(threads):
    with pytest.raises(ValueError, match="at least 1"):
        NativeOps(threads)


def test_a_missing_library_says_that_it_is_not_built(tmp_path):
    with pytest.raises(KernelsUnavailable, match="not built"):
        load(tmp_path / "libllmrun_cpu.so")


def test_a_file_that_is_no_library_is_refused(tmp_path):
    path = tmp_path / "libllmrun_cpu.so"
    path.write_bytes(b"\x7fELF but not really")
    with pytest.raises(KernelsUnavailable, match="does not load"):
        load(path)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_another_interface_number_is_refused(tmp_path):
    source, path = tmp_path / "old.c", tmp_path / "libold.so"
    source.write_text("int llmrun_abi(void) { return 999; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    with pytest.raises(KernelsUnavailable, match=r"interface 999, this llmrun needs \d+; rebuild"):
        load(path)


def test_the_abi_number_and_the_op_layout_match_the_header():
    header = (ROOT / "kernels" / "cpu" / "abi.h").read_text()
    assert f"#define LLMRUN_ABI {binding.ABI}\n" in header
    assert f"#define LLMRUN_MAX_WEIGHTS {binding.MAX_WEIGHTS} " in header
    assert ctypes.sizeof(binding.Op) == 8 + 8 * binding.NUMBERS + 8 * binding.POINTERS + 16
    for name, code in binding.TYPES.items():
        assert f"LLMRUN_{name} = {code}," in header
    for name in ("EMBED", "LINEAR", "ATTENTION", "GATHER", "ARGMAX", "PACK"):
        assert f"LLMRUN_{name} = {getattr(binding, name)}," in header


def test_more_threads_than_cores_give_the_same_result():
    assert _sum_of_two(NativeOps(16)) == 2


def test_several_pools_run_side_by_side():
    pools = [NativeOps(2) for _ in range(3)]
    for _ in range(20):
        assert all(_sum_of_two(ops, 5000) == 2 for ops in pools)


def test_a_thousand_replays_with_sleeping_workers_lose_no_work():
    ops = NativeOps(3)
    x, out = torch.zeros(1 << 15), torch.zeros(1 << 15)
    one = torch.ones(1 << 15)
    ops.begin()
    for _ in range(4):
        ops.add(x, one, out)
        ops.add(out, one, x)
    step = ops.end()
    for _ in range(1000):
        step.run()
    assert x.eq(8000).all()


def test_idle_threads_use_no_processor_time():
    ops = NativeOps(4)
    _sum_of_two(ops)
    time.sleep(0.1)  # workers spin for a fraction of a millisecond before they sleep
    before = time.process_time()
    time.sleep(1)
    assert time.process_time() - before < 0.5  # three spinning threads take a second or more


# in a process of its own: the teams of earlier tests may end between two counts
_COUNTS = """
import os
from strata_kernels.native import NativeOps
def threads():
    return len(os.listdir("/proc/self/task"))
before = threads()
ops = NativeOps(5)
assert threads() == before + 4, (before, threads())
del ops
assert threads() == before, (before, threads())
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
def test_threads_end_with_the_last_user():
    run = subprocess.run([sys.executable, "-c", _COUNTS], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


_CHILD = """
import os, sys, torch
from strata_kernels.native import NativeOps
ops = NativeOps(3)
def total():
    out = torch.empty(1 << 15)
    ops.add(torch.ones(1 << 15), torch.ones(1 << 15), out)
    return out.sum().item()
assert total() == 65536
child = os.fork()
if child == 0:
    os._exit(0 if total() == 65536 else 1)
_, status = os.waitpid(child, 0)
assert total() == 65536
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_computes_and_both_processes_exit():
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "backends", "kernels"))
    done = subprocess.run(
        [sys.executable, "-c", _CHILD], env={**os.environ, "PYTHONPATH": paths}, timeout=60, check=False
    )
    assert done.returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="madvise of mapped files")
def test_dropping_mapped_pages_frees_a_file_mapping_and_nothing_else(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 4096)
    ops = NativeOps(1)
    import numpy as np

    mapped = torch.from_numpy(np.memmap(path, mode="c", dtype=np.uint8))
    assert ops.drop_mapped(mapped) == 0  # private and writable: dropping would lose changes
    assert ops.drop_mapped(torch.zeros(1 << 20, dtype=torch.uint8)) == 0
    from_file = torch.from_file(str(path), shared=False, size=1 << 20, dtype=torch.uint8)
    assert ops.drop_mapped(from_file) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="madvise of mapped files")
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_read_only_mapping_is_dropped_and_reads_the_same_again(tmp_path):
    import numpy as np

    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 4096)
    mapped = torch.from_numpy(np.memmap(path, mode="r", dtype=np.uint8))
    before = mapped.clone()
    assert NativeOps(1).drop_mapped(mapped) == 1 << 20
    assert torch.equal(mapped, before)


def test_refused_ops_of_the_c_interface_say_what_is_wrong():
    library = load()
    functions = library.functions
    pool = functions.llmrun_pool_create(1, None)
    bad = (binding.Op * 1)(binding.Op(code=99))
    assert functions.llmrun_program_create(pool, bad, 1) is None
    assert "no such op" in library.error()
    bad[0].code = binding.ADD
    bad[0].n[0] = 4
    assert functions.llmrun_program_create(pool, bad, 1) is None
    assert "null" in library.error()
    functions.llmrun_pool_destroy(pool)


def test_packing_an_impossible_shape_has_no_size():
    functions = load().functions
    assert functions.llmrun_packed_bytes(binding.TYPES["Q4_K"], 16, 32) == -1
    assert functions.llmrun_packed_bytes(5, 16, 32) == -1
    with pytest.raises(ValueError, match="cannot have"):
        NativeOps(1).pack(Weight("Q8_0", 1, 33, torch.zeros(1, 34, dtype=torch.uint8)))
