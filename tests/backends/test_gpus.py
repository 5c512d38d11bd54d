"""GPUs found in made-up trees of several machines: what is seen, what is wrong, and what to do about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strata_backends import cuda, hip, musa
from strata_backends.gpu import GpuSeen
from strata_backends.library import Answer, Described, ask_driver, compiler_fault, run_tool
from strata_backends.probe import gpus, overrides
from strata_kernels.gpu.targets import TARGETS
from tests.support import machine_trees as trees
from tests.support.machine_trees import Machine, amd, m1000, nvidia, on_the_bus
from tests.support.standin.library import StandIn, build

BUILT = ("gfx1100", "gfx1201", "sm_90", "mp_22")
H200 = ("NVIDIA H200", "9.0", 143771)


def seen(machine: Machine, root: Path) -> list[GpuSeen]:
    return gpus(replace(machine, built=machine.built or BUILT).place(root))


def faults(machine: Machine, root: Path) -> list[tuple[str, str]]:
    [gpu] = seen(machine, root)
    return [(fault.text, fault.remedy) for fault in gpu.faults]


@pytest.mark.parametrize(
    ("version", "name"),
    [(110000, "gfx1100"), (120001, "gfx1201"), (90010, "gfx90a"), (100300, "gfx1030"), (90402, "gfx942")],
)
def test_the_stepping_of_an_architecture_is_hexadecimal(version, name):
    assert hip.arch_of(version) == name


def test_a_radeon_is_described_by_its_driver_alone(tmp_path):
    [gpu] = seen(amd(trees.RX_7900_XTX), tmp_path)
    assert (gpu.label, gpu.vendor, gpu.name, gpu.arch, gpu.units) == (
        "hip:0", "AMD", "Radeon RX 7900 XTX", "gfx1100", 96)  # fmt: skip
    assert (gpu.total_bytes, gpu.used_bytes) == (25753026560, 27979776)
    assert (gpu.link, gpu.driver, gpu.node) == ("16.0 GT/s PCIe x16", "amdgpu 6.10.5", "/dev/dri/renderD128")
    assert gpu.faults == () and "wmma f16" in gpu.features


def test_the_first_generation_is_known_to_hang_in_graphs_and_to_be_taken_for_another_vendors(tmp_path):
    [old] = seen(amd(trees.W7900), tmp_path / "a")
    [new] = seen(amd(trees.R9700), tmp_path / "b")
    assert not old.graphs and "#30245" in old.known[0] and "11.0" in old.known[1]
    assert new.graphs and new.known == ()


def test_the_list_of_names_on_the_machine_comes_before_ours(tmp_path):
    machine = amd(trees.RX_7900_XTX)
    machine.files["usr/share/libdrm/amdgpu.ids"] = "1.0.0\n744C,\tC8,\tAMD Radeon Test Card\n"
    assert seen(machine, tmp_path)[0].name == "Radeon Test Card"


def test_a_card_of_no_known_name_has_its_number(tmp_path):
    assert seen(amd(replace(trees.W7900, device_id=0x1234)), tmp_path)[0].name == "GPU 1234"


def test_memory_comes_from_the_banks_when_the_card_does_not_tell(tmp_path):
    nodes = "sys/class/kfd/kfd/topology/nodes/1"
    files = {
        f"{nodes}/properties": "simd_count 4\ngfx_target_version 110000\n",
        f"{nodes}/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 1000\n",
        f"{nodes}/mem_banks/1/properties": "heap_type 0\nsize_in_bytes 5\n",
    }
    assert seen(Machine(files), tmp_path)[0].total_bytes == 1000


def test_processor_nodes_are_no_gpus(tmp_path):
    assert seen(amd(), tmp_path) == []


def test_nodes_are_taken_in_numeric_order(tmp_path):
    files = {f"sys/class/kfd/kfd/topology/nodes/{n}/properties": f"simd_count 4\ndevice_id {n}\n" for n in (2, 10)}
    assert [gpu.name for gpu in seen(Machine(files), tmp_path)] == ["GPU 0002", "GPU 000a"]


def test_garbage_in_the_files_is_left_out_not_guessed(tmp_path):
    place = amd(trees.RX_7900_XTX).place(tmp_path)
    (tmp_path / "sys/class/drm/renderD128/device/mem_info_vram_total").write_bytes(b"\xff\xfe")
    assert gpus(place)[0].total_bytes is None


def test_missing_rights_on_a_node_name_it_and_the_group(tmp_path):
    machine = replace(amd(trees.RX_7900_XTX), denied=("dev/kfd", "dev/dri/renderD128"), drivers={})
    assert faults(machine, tmp_path) == [
        ("no rights on /dev/kfd", "sudo usermod -aG render $USER, then log in again")
    ]  # what follows from it is not said as well


def test_a_missing_node_is_a_containers(tmp_path):
    machine = amd(trees.RX_7900_XTX)
    del machine.files["dev/kfd"]
    [(text, remedy)] = faults(machine, tmp_path)
    assert text == "/dev/kfd is not there" and "--device /dev/kfd" in remedy


def test_an_unsupported_architecture_says_which_are(tmp_path):
    [(text, remedy)] = faults(amd(trees.VEGA_20), tmp_path)
    assert text == "there are no kernels for gfx906, only for gfx1100, gfx1201" and remedy == "--device cpu"


def test_an_override_that_changes_the_architecture_is_a_fault_and_a_harmless_one_is_not(tmp_path):
    lying = replace(amd(trees.RX_9070_XT), variables={"HSA_OVERRIDE_GFX_VERSION": "11.0.0"})
    [(text, remedy)] = faults(lying, tmp_path / "a")
    assert "gfx1201 for a gfx1100" in text and remedy == "unset HSA_OVERRIDE_GFX_VERSION"
    assert faults(replace(lying, variables={"HSA_OVERRIDE_GFX_VERSION": "12.0.1"}), tmp_path / "b") == []


@pytest.mark.parametrize("card", [trees.RX_7900_XTX, trees.RX_9070_XT])
def test_an_old_runtime_is_told_by_its_version(tmp_path, card):
    [(text, remedy)] = faults(amd(card, driver=trees.ROCM_5_7), tmp_path)
    assert "too old" in text and "ROCm 6." in remedy


def test_a_missing_library_and_a_silent_device_are_faults(tmp_path):
    [(text, remedy)] = faults(replace(amd(trees.W7900), drivers={}), tmp_path / "a")
    assert "libamdhip64.so" in text and "libamdhip64.so" in remedy
    empty = replace(amd(trees.W7900), drivers={"hip": Answer(version=trees.ROCM_6_4)})
    assert "shows 0 devices" in faults(empty, tmp_path / "b")[0][0]


def test_kernels_that_can_be_built_do_not_block_and_those_that_cannot_do(tmp_path):
    machine = replace(amd(trees.W7900), built=("gfx1201",))
    [gpu] = seen(machine, tmp_path / "a")
    assert gpu.blocking is None and gpu.faults[0].remedy == "llmrun kernels build"
    [gpu] = seen(replace(machine, compiler="the compiler (triton) is not installed"), tmp_path / "b")
    assert gpu.blocking is not None and "pip install" in gpu.blocking.remedy


def test_a_variable_hides_and_renumbers_cards(tmp_path):
    machine = replace(amd(trees.RX_7900_XTX, trees.W7900), variables={"HIP_VISIBLE_DEVICES": "1"})
    first, second = seen(machine, tmp_path)
    assert (first.label, first.name, first.faults) == ("hip:0", "Radeon PRO W7900", ())
    assert (second.label, second.name) == ("hip", "Radeon RX 7900 XTX")
    assert second.blocking is not None and second.blocking.text == "hidden by HIP_VISIBLE_DEVICES=1"


def test_two_cards_have_numbers_in_order(tmp_path):
    assert [gpu.label for gpu in seen(amd(trees.R9700, trees.R9700), tmp_path)] == ["hip:0", "hip:1"]


def test_an_nvidia_card_is_described_by_its_tool(tmp_path):
    [gpu] = seen(nvidia(H200), tmp_path)
    assert (gpu.label, gpu.name, gpu.arch, gpu.driver) == ("cuda:0", "H200", "sm_90", "nvidia 570.86.10")
    assert (gpu.total_bytes, gpu.node, gpu.link) == (143771 * 2**20, "/dev/nvidia0", "32.0 GT/s PCIe x16")
    assert gpu.faults == ()


def test_without_the_tool_the_kernel_still_names_the_card(tmp_path):
    [gpu] = seen(replace(nvidia(H200), tools={}), tmp_path)
    assert (gpu.name, gpu.driver, gpu.total_bytes) == ("H200", "nvidia 570.86.10", None)
    assert gpu.blocking is not None and "architecture" in gpu.blocking.text


def test_without_the_tool_the_driver_itself_is_asked(tmp_path):
    answer = Answer(version=trees.CUDA_12_8, count=1, devices=(Described("NVIDIA H200", "9.0", 150 * 10**9),))
    [gpu] = seen(replace(nvidia(H200), tools={}, drivers={"cuda": answer}), tmp_path / "a")
    assert (gpu.label, gpu.name, gpu.arch, gpu.total_bytes) == ("cuda:0", "H200", "sm_90", 150 * 10**9)
    assert gpu.faults == () and gpu.driver == "nvidia 570.86.10"
    answer = Answer(version=trees.MUSA, count=1, devices=(Described("MTT M1000", "2.2", None),))
    [gpu] = seen(replace(m1000(), tools={}, drivers={"musa": answer}), tmp_path / "b")
    assert (gpu.name, gpu.arch) == ("MTT M1000", "mp_22")


def test_the_tool_is_not_run_where_no_driver_is_loaded(tmp_path):
    def never(_command):
        raise AssertionError("a tool was run")

    assert gpus(replace(Machine().place(tmp_path), run=never)) == []


def test_cards_of_different_models_are_a_note_until_their_order_is_set(tmp_path):
    machine = nvidia(H200, ("NVIDIA H100 PCIe", "9.0", 81559))
    first, second = seen(machine, tmp_path / "a")
    assert first.blocking is None and "CUDA_DEVICE_ORDER" in first.faults[0].remedy
    assert second.name == "H100 PCIe"
    ordered = replace(machine, variables={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert [gpu.faults for gpu in seen(ordered, tmp_path / "b")] == [(), ()]


def test_names_that_are_no_numbers_leave_the_order_alone(tmp_path):
    machine = replace(nvidia(H200), variables={"CUDA_VISIBLE_DEVICES": "GPU-8932f937"})
    assert [gpu.label for gpu in seen(machine, tmp_path)] == ["cuda:0"]


def test_an_old_nvidia_driver_and_an_old_card_are_refused(tmp_path):
    assert "too old" in faults(nvidia(H200, driver=11_040), tmp_path / "a")[0][0]
    assert "sm_70" in faults(nvidia(("Tesla V100", "7.0", 16384)), tmp_path / "b")[0][0]


def test_an_m1000_shares_the_machines_memory(tmp_path):
    [gpu] = seen(m1000(), tmp_path)
    assert (gpu.label, gpu.vendor, gpu.name, gpu.arch) == ("musa:0", "Moore Threads", "MTT M1000", "mp_22")
    assert (gpu.total_bytes, gpu.driver) == (65798144 * 1024, "mtgpu 5.1.1-M1000")
    assert gpu.used_bytes == (65798144 - 60000000) * 1024 and gpu.faults == ()


def test_an_m1000_is_told_by_its_packages_when_no_tool_is_there(tmp_path):
    [gpu] = seen(replace(m1000(), tools={}), tmp_path)
    assert (gpu.name, gpu.arch) == ("M1000", "mp_22")


def test_a_card_without_a_driver_is_still_seen_on_the_bus(tmp_path):
    [gpu] = seen(on_the_bus("0x1002\n", "0x744c\n"), tmp_path)
    assert (gpu.kind, gpu.vendor, gpu.name) == ("", "AMD", "GPU 744c")
    assert gpu.blocking is not None and gpu.blocking.text == "no kernel driver is bound to it"


def test_a_card_whose_driver_offers_no_computing_says_so(tmp_path):
    place = on_the_bus("0x10de\n", "0x2684\n").place(tmp_path)
    (tmp_path / "sys/bus/pci/drivers/nouveau").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:03:00.0/driver").symlink_to(tmp_path / "sys/bus/pci/drivers/nouveau")
    [gpu] = gpus(place)
    assert gpu.driver == "nouveau" and "not the one for computing" in gpu.faults[0].text


def test_network_cards_and_unknown_vendors_are_not_listed(tmp_path):
    network, unknown = on_the_bus("0x10de\n", "0x1\n"), on_the_bus("0x1234\n", "0x1\n")
    network.files["sys/bus/pci/devices/0000:03:00.0/class"] = "0x020000\n"
    assert seen(network, tmp_path / "a") == seen(unknown, tmp_path / "b") == []


def test_overrides_are_those_that_are_set(tmp_path):
    given = {"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}
    assert overrides(Machine(variables=given).place(tmp_path)) == given


def test_this_machine_can_be_read():
    assert isinstance(gpus(), list)


def test_a_library_that_is_missing_or_is_another_is_a_fault():
    assert (
        ask_driver("hip", ["libno-such-thing.so"]).fault == "the driver's library libno-such-thing.so is not installed"
    )
    assert "is not the driver's library" in ask_driver("cuda", ["libc.so.6"]).fault


@pytest.fixture(scope="module")
def standin(tmp_path_factory) -> StandIn:
    folder = tmp_path_factory.mktemp("standin")
    return StandIn(build(folder), folder)


def test_a_driver_tells_its_version_and_devices_without_a_context(standin):
    standin.device(2, "Stand-in H", major=9, minor=0)
    standin.forget()
    answer = ask_driver("cuda", [str(standin.path)])
    assert (answer.fault, answer.count) == ("", 2) and answer.version > 0
    assert answer.devices == (Described("Stand-in H", "9.0", None),) * 2
    assert not [name for name in standin.calls() if "Ctx" in name]
    assert ask_driver("hip", [str(standin.path)]).count == 2


def test_a_driver_that_does_not_start_says_the_number(standin):
    standin.device(1)
    standin.fail("cuInit", 803)
    assert ask_driver("cuda", [str(standin.path)]).fault == "its driver does not start: cuInit says 803"
    standin.fail("cuDeviceGetCount", 100)
    assert "cuDeviceGetCount says 100" in ask_driver("cuda", [str(standin.path)]).fault


def test_a_tool_that_is_missing_or_fails_prints_nothing():
    assert run_tool(["no-such-tool-of-ours"]) == "" == run_tool(["false"])
    assert run_tool(["echo", "x"]) == "x\n"


def test_the_compiler_is_looked_for_without_importing_it():
    assert compiler_fault("gfx1100") == "" == compiler_fault("sm_90")
    assert "on the device" in compiler_fault("mp_22")


def test_every_architecture_has_kernels_that_can_be_built():
    assert {*hip.ARCHITECTURES, *cuda.ARCHITECTURES, *musa.ARCHITECTURES} == set(TARGETS)
