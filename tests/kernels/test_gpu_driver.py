"""The driver layer over the stand-in library: memory, launches, graphs, threads, failures, order of release."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from strata_kernels.gpu.driver import Driver, DriverAllocator, open_driver
from strata_kernels.gpu.driver_errors import DriverError, DriverUnavailable, OutOfDeviceMemory
from strata_kernels.gpu.driver_launch import PackedLaunch
from tests.support.standin.library import StandIn, build

KINDS = ("cuda", "hip", "musa")
IMAGE = b"\x7fELF a module of the tests"


@pytest.fixture(params=KINDS)
def driver(request: pytest.FixtureRequest, standin: StandIn) -> Driver:
    return open_driver(request.param, library=standin.path)


@pytest.fixture
def cuda(standin: StandIn) -> Driver:
    return open_driver("cuda", library=standin.path)


def packed(driver: Driver, standin: StandIn, *numbers: int, shared: int = 0) -> PackedLaunch:
    """A launch of a kernel that takes 64-bit numbers."""
    standin.know(IMAGE, "kernel", len(numbers))
    function = driver.load(IMAGE).function("kernel", 128, shared)
    return driver.pack(function, (3, 2, 1), struct.pack(f"<{len(numbers)}Q", *numbers))


def run_all(launches: Sequence[PackedLaunch]) -> None:
    for launch in launches:
        launch.run()


@pytest.mark.parametrize(
    ("kind", "facts", "arch", "warp"),
    [
        ("cuda", {"major": 9, "minor": 0}, "sm_90", 32),
        ("hip", {"gfx": "gfx1100"}, "gfx1100", 32),
        ("hip", {"gfx": "gfx90a:sramecc+:xnack-", "lanes": 64}, "gfx90a", 64),
        ("musa", {"major": 2, "minor": 2, "lanes": 128}, "mp_22", 128),
    ],
)
def test_a_device_says_what_it_is(standin, kind, facts, arch, warp):
    standin.device(name="Some Device 9000", memory=1 << 28, **facts)
    driver = open_driver(kind, library=standin.path)
    assert (driver.name, driver.arch, driver.warp, driver.units) == ("Some Device 9000", arch, warp, 132)
    assert driver.memory() == (1 << 28, 1 << 28)


def test_an_architecture_that_cannot_be_told_is_refused(standin):
    standin.device(gfx="no name of one")
    with pytest.raises(DriverUnavailable, match="names 0 architectures"):
        open_driver("hip", library=standin.path)


def test_memory_keeps_what_is_put_there(driver):
    data = np.arange(1000, dtype=np.uint8)
    first, second = driver.allocate(1000), driver.allocate(2000)
    first.write(0, data)
    second.fill(0, 2000, 7)
    second.copy(100, first, 10, 50)
    out = np.empty(160, np.uint8)
    second.read(0, out)
    assert (out[:100] == 7).all() and (out[100:150] == data[10:60]).all() and (out[150:] == 7).all()
    assert first.address % 256 == 0 and first.like(5).nbytes == 5


@pytest.mark.parametrize("bytes_off", [0, 16])
def test_blocks_are_aligned_whatever_the_driver_gives(standin, driver, bytes_off):
    standin.misalign(bytes_off)
    block = DriverAllocator(driver).allocate(1000)
    assert block.address % 256 == 0
    block.write(0, np.zeros(1000, np.uint8))
    del block
    assert "memory" not in standin.live()


def test_pinned_memory_lives_as_long_as_a_view_of_it(standin, driver):
    array = driver.pinned(4096)
    assert not array.any()
    view = array[10:20].view(np.int16)
    del array
    assert standin.live()["host"] == 1
    del view
    assert "host" not in standin.live()


def test_a_launch_arrives_as_it_was_packed(standin, driver):
    packed(driver, standin, 1, 2**63, 3, shared=1024).run()
    (seen,) = standin.seen
    assert (seen.symbol, seen.grid, seen.threads, seen.shared) == ("kernel", (3, 2, 1), 128, 1024)
    assert seen.values == (1, 2**63, 3)


def test_a_launch_outlives_the_module_that_nobody_holds(standin, driver):
    launch = packed(driver, standin, 1)
    launch.run()
    assert standin.live()["module"] == 1
    del launch
    assert "module" not in standin.live()


def test_events_measure_what_lies_between(standin, driver):
    launch, start, end = packed(driver, standin, 1), driver.event(), driver.event()
    start.record()
    launch.run()
    launch.run()
    end.record()
    end.wait()
    assert end.since(start) == 2  # the stand-in counts a millisecond for each


def test_much_shared_memory_is_asked_for(standin, driver):
    packed(driver, standin, 1, shared=60 << 10).run()
    asked = [name for name in standin.calls() if name.endswith("FuncSetAttribute")]
    assert asked == (["cuFuncSetAttribute"] if driver.kind == "cuda" else [])


def test_more_shared_memory_than_there_is_is_refused(standin):
    standin.device(shared=64 << 10)
    driver = open_driver("cuda", library=standin.path)
    with pytest.raises(DriverUnavailable, match=r"needs 65,537 bytes .* has 65,536"):
        packed(driver, standin, 1, shared=(64 << 10) + 1)


def test_a_graph_repeats_its_launches_in_order(standin, driver):
    first, second = packed(driver, standin, 1), packed(driver, standin, 2)
    graph = driver.capture(partial(run_all, [first, second, first]))
    assert graph is not None and not standin.seen
    graph.launch()
    graph.launch()
    assert [seen.values[0] for seen in standin.seen] == [1, 2, 1] * 2
    del first, second
    graph.launch()  # it holds what it uses
    graph.close()
    assert "exec" not in standin.live()


def test_copies_are_captured_and_repeated(driver):
    block, host, out = driver.allocate(8), driver.pinned(8), driver.pinned(8)

    def work() -> None:
        driver.upload(block.address, host, wait=False)
        driver.download(out, block.address, wait=False)

    graph = driver.capture(work)
    assert graph is not None
    for value in (3, 4):
        host[:] = value
        graph.launch()
        driver.wait()
        assert (out == value).all()


def test_what_dies_during_a_capture_is_given_back_after_it(standin, cuda):
    launch, blocks = packed(cuda, standin, 1), [cuda.allocate(8)]

    def work() -> None:
        launch.run()
        blocks.clear()
        assert standin.live()["memory"] == 1

    assert cuda.capture(work) is not None
    assert "memory" not in standin.live()


def test_work_that_fails_ends_its_capture(standin, driver):
    launch = packed(driver, standin, 1)

    def work() -> None:
        launch.run()
        raise KeyError("of the work")

    with pytest.raises(KeyError, match="of the work"):
        driver.capture(work)
    assert driver.capture(launch.run) is not None
    assert standin.live().get("graph", 0) == 0


def test_graphs_can_be_forbidden(standin):
    driver = open_driver("hip", library=standin.path, graphs=False)
    assert driver.capture(lambda: pytest.fail("this must not run")) is None
    assert not any("Capture" in name for name in standin.calls())


@pytest.mark.parametrize("name", ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"])
def test_a_driver_that_refuses_graphs_is_not_asked_again(standin, cuda, name):
    standin.fail(name, 801)
    launch = packed(cuda, standin, 1)
    assert cuda.capture(launch.run) is None
    assert f"{name} failed with status 801" in cuda.graphs_refused
    assert not cuda.graphs and cuda.capture(launch.run) is None
    assert standin.live().get("graph", 0) == 0


def test_a_library_without_graphs_is_used_without(tmp_path):
    standin = StandIn(build(tmp_path, "GRAPHS"), tmp_path)
    for kind in KINDS:
        assert not open_driver(kind, library=standin.path).graphs


def test_a_missing_function_is_named(tmp_path):
    library = build(tmp_path, "LAUNCH")
    with pytest.raises(DriverUnavailable, match=r"has no function cuLaunchKernel: it is too old.*; install NVIDIA"):
        open_driver("cuda", library=library)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_library_is_named(kind, tmp_path):
    with pytest.raises(DriverUnavailable, match=r"no \w+ driver library could be opened \(.*nowhere.so: .*; install"):
        open_driver(kind, library=tmp_path / "nowhere.so")


def test_a_driver_without_devices_says_so(standin):
    standin.device(count=0)
    with pytest.raises(
        DriverUnavailable, match=r"finds no device: cuInit failed with status 100 \(no device is detected"
    ):
        open_driver("cuda", library=standin.path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_that_is_not_there_is_refused(standin, kind):
    standin.device(count=2)
    open_driver(kind, 1, standin.path)
    with pytest.raises(DriverUnavailable, match=f"no {kind} device 2: the driver has 2"):
        open_driver(kind, 2, standin.path)


@pytest.mark.parametrize("kind", KINDS)
def test_too_much_memory_is_refused_with_the_numbers(standin, kind):
    standin.device(memory=1 << 22)
    driver = open_driver(kind, library=standin.path)
    held = driver.allocate(1 << 21)
    with pytest.raises(OutOfDeviceMemory, match=r"Stand-in has no room for 4.0 MiB more: 2.0 MiB are free") as error:
        driver.allocate(1 << 22)
    assert (error.value.asked, error.value.free) == (1 << 22, 1 << 21)
    del held
    driver.allocate(1 << 22)


def test_host_memory_that_cannot_be_pinned_is_refused(standin, cuda):
    standin.fail("cuMemHostAlloc", 2)
    with pytest.raises(MemoryError, match=r"cannot pin 1.0 MiB .*\(out of memory\)"):
        cuda.pinned(1 << 20)


def test_code_the_driver_does_not_take_is_refused(driver):
    with pytest.raises(
        DriverError, match=r"ModuleLoadData failed .* image is invalid\); the code is not for this device"
    ):
        driver.load(b"\x7fELF of someone else")


def test_a_function_that_is_not_there_is_refused(standin, driver):
    standin.know(IMAGE, "kernel", 1)
    with pytest.raises(DriverError, match="ModuleGetFunction failed with status 500"):
        driver.load(IMAGE).function("another", 128)


def test_a_launch_that_is_refused_says_which(standin, cuda):
    launch = packed(cuda, standin, 1)
    standin.fail("cuLaunchKernel", 1)
    with pytest.raises(DriverError, match=r"cuLaunchKernel of kernel failed with status 1") as error:
        launch.run()
    assert not error.value.lost
    launch.run()


def test_what_fails_on_the_device_is_raised_by_the_wait(standin, cuda):
    standin.fail("cuStreamSynchronize", 700)
    with pytest.raises(DriverError, match="cannot be used by this process any more: start it again") as error:
        cuda.wait()
    assert error.value.lost


def test_each_thread_gets_the_device(standin):
    standin.device(count=2)
    found: dict[str, bool] = {}

    def use(driver: Driver) -> None:
        block, out = driver.allocate(4), np.zeros(4, np.uint8)
        block.write(0, np.full(4, 9, np.uint8))
        block.read(0, out)
        found[driver.kind] = bool((out == 9).all())

    for kind in KINDS:  # device 1: a thread that chose nothing would have no context, or device 0
        thread = threading.Thread(target=use, args=(open_driver(kind, 1, standin.path),))
        thread.start()
        thread.join(timeout=60)
    assert found == dict.fromkeys(KINDS, True)


def test_memory_can_be_given_back_by_another_thread(standin, cuda):
    blocks = [cuda.allocate(4)]
    thread = threading.Thread(target=blocks.clear)
    thread.start()
    thread.join(timeout=60)
    assert "memory" not in standin.live() and not cuda.session.refused


def test_a_collection_at_a_bad_moment_does_no_harm(standin, cuda):
    blocks = [cuda.allocate(4)]
    with cuda.session._lock:  # where allocations of Python's own may start a collection
        blocks.clear()
    assert "memory" not in standin.live()


def test_closing_gives_back_what_uses_others_first(standin, driver):
    held = [driver.allocate(4), driver.pinned(4), driver.event(), packed(driver, standin, 1)]
    held.append(driver.capture(held[-1].run))
    standin.forget()
    driver.close()
    assert standin.live() == {} and driver.session.refused == []
    order = [name for name in standin.calls() if "Synchronize" not in name]
    marks = ("GraphExec", "Event", "Module", "Free", "Free", "StreamDestroy", "PrimaryCtx")
    for mark, name in zip(marks, order, strict=driver.kind != "hip"):
        assert mark in name
    with pytest.raises(RuntimeError, match="has been closed"):
        driver.wait()
    standin.forget()
    del held
    assert standin.calls() == []  # nothing is given back twice


@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_that_nobody_holds_is_closed(standin, kind):
    driver = open_driver(kind, library=standin.path)
    block = driver.allocate(4)
    del driver
    assert standin.live()["memory"] == 1  # the block holds its driver
    block.fill(0, 4, 1)
    del block
    assert standin.live() == {}


def test_a_failed_device_is_still_let_go(standin, cuda):
    block = cuda.allocate(4)
    standin.fail("cuMemFree_v2", 700)
    del block
    assert cuda.session.refused and "status 700" in cuda.session.refused[0]
    cuda.close()
    assert standin.live() == {"memory": 1}  # which the driver refused to take
