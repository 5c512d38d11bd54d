"""From operations to the driver: compiled kernels are found, checked, loaded and launched, never compiled."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from strata_kernels.gpu.arrays import DeviceArray, HostAllocator
from strata_kernels.gpu.bundle import BadEntry, Store
from strata_kernels.gpu.bundled import BundleLauncher, pack_values
from strata_kernels.gpu.compile import ensure_kernels
from strata_kernels.gpu.driver import DriverAllocator
from strata_kernels.gpu.driver_errors import DriverError, MissingVariant, WrongBundle
from strata_kernels.gpu.interpreted import InterpretedLauncher
from strata_kernels.gpu.launch import Launch, make_launch
from strata_kernels.gpu.ops import GpuOps
from tests.support.standin.kernels import StandInStore, open_standin, standin_ops
from tests.support.standin.library import StandIn

KINDS = ("cuda", "hip", "musa")


@pytest.fixture
def launcher(standin: StandIn, tmp_path: Path) -> BundleLauncher:
    driver = open_standin(standin)
    return BundleLauncher(driver, StandInStore(standin, tmp_path, driver.arch))


def add_launch(launcher: BundleLauncher, count: int = 40) -> Launch:
    ops = GpuOps(launcher, DriverAllocator(launcher.driver))
    arrays = [ops.zeros(count) for _ in range(3)]
    return make_launch("add", (1,), [*arrays, count], {"BLOCK": 64})


def block_of(ops: GpuOps) -> tuple[DeviceArray, ...]:
    """A small chain of operations over a recorded step; the arrays that the host writes and reads."""
    x, weight, out = ops.zeros(3, 48), ops.constant(np.linspace(0.5, 2, 48, dtype=np.float32)), ops.zeros(3, 48)
    with ops.scope():
        normed, gated = ops.take(3, 48), ops.take(3, 48)
        ops.rms_norm(x, weight, 1e-5, normed)
        ops.silu_mul(normed, x, gated)
        ops.add(gated, x, out)
    return x, out


def run_steps(ops: GpuOps) -> list[np.ndarray]:
    """What a recorded step gives, twice, with other inputs."""
    ops.begin()
    x, out = block_of(ops)
    step = ops.end()
    inputs, outputs = ops.host(x), ops.host(out, read=True)
    results = []
    for seed in (1, 2):
        inputs[...] = np.random.default_rng(seed).standard_normal((3, 48))
        step.run()
        results.append(outputs.copy())
    return results


@pytest.mark.parametrize("graphs", [True, False], ids=["graph", "list"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_gives_what_the_interpreter_gives(standin, tmp_path, kind, graphs):
    wanted = run_steps(GpuOps(InterpretedLauncher(), HostAllocator()))
    ops = standin_ops(standin, tmp_path, kind, graphs)
    for ours, theirs in zip(run_steps(ops), wanted, strict=True):
        assert theirs.any() and (ours == theirs).all()
    assert standin.raised == []
    counts = ops.launcher.counts
    assert (counts.graphs, counts.graph_launches) == ((1, 2) if graphs else (0, 0))
    assert (counts.launches, counts.loads, counts.compiles) == (6, 3, 0)


def test_a_step_waits_once_for_all_its_copies(standin, tmp_path):
    ops = standin_ops(standin, tmp_path)
    ops.begin()
    x, out = block_of(ops)
    step = ops.end()
    ops.host(x), ops.host(out, read=True)
    standin.forget()
    step.run()
    assert standin.calls() == ["cuMemcpyHtoDAsync_v2", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"]


def test_an_operation_outside_a_recording_runs_at_once(standin, tmp_path):
    ops = standin_ops(standin, tmp_path)
    a, b, out = ops.constant(np.arange(40, dtype=np.float32)), ops.constant(np.ones(40, np.float32)), ops.zeros(40)
    ops.add(a, b, out)
    assert (out.numpy() == np.arange(40) + 1).all()
    assert ops.launcher.counts.graphs == 0


def test_a_variant_is_loaded_once(standin, launcher):
    for _ in range(3):
        launcher.prepare([add_launch(launcher), add_launch(launcher)]).run()
    assert launcher.counts.loads == 1 == sum(name == "cuModuleLoadData" for name in standin.calls())


def test_a_missing_variant_is_named_with_the_remedy(standin, tmp_path):
    driver = open_standin(standin)
    launcher = BundleLauncher(driver, Store(tmp_path, driver.arch))
    launch = add_launch(launcher)
    with pytest.raises(
        MissingVariant, match=r"no add\(\*fp32,.*nothing is compiled while running.* kernels build"
    ) as it:
        launcher.prepare([launch])
    assert it.value.key == launch.variant.key


def test_a_store_for_another_device_is_refused(standin, tmp_path):
    with pytest.raises(WrongBundle, match=r"are for gfx1201, Stand-in is sm_90: .* kernels build --arch sm_90"):
        BundleLauncher(open_standin(standin), Store(tmp_path, "gfx1201"))


@pytest.mark.parametrize("place", [9, 60, -40, -1], ids=["length", "facts", "code", "hash"])
def test_a_changed_byte_is_refused_before_the_driver_sees_it(standin, launcher, place):
    launch = add_launch(launcher)
    path = launcher.store.make(launch.variant)
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadEntry, match="is damaged"):
        launcher.prepare([launch])
    assert "cuModuleLoadData" not in standin.calls()


def test_what_the_driver_refuses_to_load_says_what_to_do(standin, launcher):
    standin.fail("cuModuleLoadData", 209)
    launch = add_launch(launcher)
    with pytest.raises(DriverError, match="not for this device or driver: build it again"):
        launcher.prepare([launch])
    launcher.prepare([launch]).run()  # the next attempt finds nothing half done


def test_a_kernel_that_fails_is_reported_by_the_step(standin, launcher):
    step = launcher.prepare([add_launch(launcher), add_launch(launcher)])
    standin.fail("cuGraphLaunch", 719)
    with pytest.raises(DriverError, match=r"cuGraphLaunch failed with status 719 .* start it again"):
        step.run()


def test_a_checked_launcher_names_the_kernel_that_fails(standin, launcher):
    checked = BundleLauncher(launcher.driver, launcher.store, checked=True)
    step = checked.prepare([add_launch(checked), add_launch(checked)])
    step.run()
    assert checked.counts.graphs == 0 and len(standin.seen) == 2
    standin.fail("cuStreamSynchronize", 700, at=2)
    with pytest.raises(DriverError, match=r"add_\w+ with \(1, 1, 1\) blocks failed with status 700"):
        step.run()


def test_a_driver_that_refuses_graphs_runs_the_list(standin, launcher):
    standin.fail("cuGraphInstantiateWithFlags", 801)
    launcher.prepare([add_launch(launcher), add_launch(launcher)]).run()
    assert launcher.counts.graphs == 0 and len(standin.seen) == 2
    assert "status 801" in launcher.driver.graphs_refused


def test_a_step_holds_the_memory_it_uses(standin, launcher):
    step = launcher.prepare([add_launch(launcher), add_launch(launcher)])
    assert standin.live()["memory"] == 6
    step.run()
    assert standin.raised == []
    del step
    assert "memory" not in standin.live() and "exec" not in standin.live()


def test_arguments_are_laid_out_as_a_compiled_kernel_takes_them():
    array = DeviceArray(HostAllocator().allocate(16), 0, (4,), "f32")
    launch = make_launch("any", (1,), [array, -2, 0.5, array], {})
    assert launch.variant.types == ("*fp32", "i32", "fp32", "*fp32")
    assert pack_values(launch) == struct.pack("<Qi4xf4xQQQ", array.address, -2, 0.5, array.address, 0, 0)


def test_the_compilers_kernels_take_what_is_packed(standin, tmp_path):
    """Code of the pinned compiler, through the loader: its own description of its arguments is what we pass."""
    for kind, arch, read in (("hip", "gfx1100", amd_arguments), ("cuda", "sm_90", cuda_arguments)):
        driver = open_standin(standin, kind)
        launcher = BundleLauncher(driver, Store(tmp_path, arch))
        ops = GpuOps(launcher, DriverAllocator(driver))
        launch = make_launch("rms_norm", (2,), [*(ops.zeros(2, 64) for _ in range(3)), 0.5], {"WIDTH": 64, "BLOCK": 64})
        entry = ensure_kernels([launch.variant], arch, tmp_path, jobs=1)[0].entry
        assert entry is not None
        arguments = read(entry.code)
        assert arguments == [(0, 8), (8, 8), (16, 8), (24, 4), (32, 8), (40, 8)]
        assert len(pack_values(launch)) == 48
        standin.know(entry.code, entry.symbol, len(arguments))
        launcher.prepare([launch]).run()
        assert standin.seen[-1].values[3:] == (struct.unpack("<I", struct.pack("<f", 0.5))[0], 0, 0)
        assert standin.seen[-1].threads == 128


def amd_arguments(code: bytes) -> list[tuple[int, int]]:
    """Offset and size of each argument by the notes of an AMD code object (msgpack; all below 128 here)."""
    return [(m[1][0], m[2][0]) for m in re.finditer(rb"\xa7\.offset(.)\xa5\.size(.)", code, re.S)]


def cuda_arguments(code: bytes) -> list[tuple[int, int]]:
    """The same of a cubin: records of attribute 0x17, 12 bytes: index, number, offset, size in the upper bits."""
    found = [struct.unpack("<IHHI", m[1]) for m in re.finditer(rb"\x04\x17\x0c\x00(.{12})", code, re.S)]
    return sorted((offset, size >> 18) for _, _, offset, size in found)
