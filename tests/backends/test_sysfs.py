"""Hardware from /sys, /proc and /dev, read in made-up trees of several machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_backends import sysfs


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def kfd_node(number: int, **values: int) -> dict[str, str]:
    text = "".join(f"{name} {value}\n" for name, value in values.items())
    return {f"sys/class/kfd/kfd/topology/nodes/{number}/properties": text}


def radeon(root: Path, version: int = 110000) -> Path:
    device = "sys/class/drm/renderD128/device"
    return write(
        root,
        {
            **kfd_node(0, cpu_cores_count=16, simd_count=0),
            **kfd_node(1, simd_count=192, simd_per_cu=2, gfx_target_version=version, device_id=0x744C,
                       drm_render_minor=128),
            f"{device}/mem_info_vram_total": "25753026560\n",
            f"{device}/mem_info_vram_used": "27979776\n",
            f"{device}/current_link_speed": "16.0 GT/s PCIe\n",
            f"{device}/current_link_width": "16\n",
            "sys/module/amdgpu/version": "6.10.5\n",
            "dev/kfd": "",
            "dev/dri/renderD128": "",
        },
    )  # fmt: skip


def every(_path: Path) -> bool:
    return True


@pytest.mark.parametrize(
    ("version", "name"),
    [(110000, "gfx1100"), (120001, "gfx1201"), (90010, "gfx90a"), (100300, "gfx1030"), (90402, "gfx942")],
)
def test_the_stepping_of_an_architecture_is_hexadecimal(version, name):
    assert sysfs.arch_of(version) == name


def test_a_radeon_is_described_by_its_driver_alone(tmp_path):
    [gpu] = sysfs.gpus(radeon(tmp_path), every)
    assert (gpu.vendor, gpu.arch, gpu.units) == ("AMD", "gfx1100", 96)
    assert (gpu.total_bytes, gpu.used_bytes) == (25753026560, 27979776)
    assert (gpu.link, gpu.driver, gpu.node) == ("16.0 GT/s PCIe x16", "amdgpu 6.10.5", "/dev/dri/renderD128")
    assert gpu.problems == ()


def test_missing_rights_on_the_nodes_are_a_problem_with_the_node_named(tmp_path):
    [gpu] = sysfs.gpus(radeon(tmp_path), lambda path: path.name != "kfd")
    assert gpu.problems == ("no rights on /dev/kfd: join group render",)


def test_memory_comes_from_the_banks_when_the_card_does_not_tell(tmp_path):
    root = write(
        tmp_path,
        {
            **kfd_node(1, simd_count=4, gfx_target_version=110000),
            "sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 1000\n",
            "sys/class/kfd/kfd/topology/nodes/1/mem_banks/1/properties": "heap_type 0\nsize_in_bytes 5\n",
        },
    )
    [gpu] = sysfs.gpus(root, every)
    assert gpu.total_bytes == 1000


def test_processor_nodes_are_no_gpus(tmp_path):
    assert sysfs.gpus(write(tmp_path, kfd_node(0, simd_count=0)), every) == []


def test_nodes_are_taken_in_numeric_order(tmp_path):
    nodes = {**kfd_node(2, simd_count=4, device_id=2), **kfd_node(10, simd_count=4, device_id=10)}
    assert [gpu.name for gpu in sysfs.gpus(write(tmp_path, nodes), every)] == ["GPU 0002", "GPU 000a"]


def test_an_nvidia_card_is_named_by_its_driver(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Thu\nGCC\n",
            "proc/driver/nvidia/gpus/0000:01:00.0/information": (
                "Model: \t\t NVIDIA H200\nBus Location: \t 0000:01:00.0\nDevice Minor: \t 3\n"
            ),
            "sys/bus/pci/devices/0000:01:00.0/current_link_speed": "32.0 GT/s PCIe\n",
            "sys/bus/pci/devices/0000:01:00.0/current_link_width": "16\n",
        },
    )
    [gpu] = sysfs.gpus(root, every)
    assert (gpu.vendor, gpu.name, gpu.driver) == ("NVIDIA", "NVIDIA H200", "nvidia 570.86.10")
    assert (gpu.node, gpu.link, gpu.total_bytes) == ("/dev/nvidia3", "32.0 GT/s PCIe x16", None)


def test_an_m1000_box_is_told_by_its_packages(tmp_path):
    packages = "Package: libc6\nVersion: 2.35\n\nPackage: musa\nVersion: 4.1.0-M1000\nStatus: ok\n"
    root = write(tmp_path, {"dev/mtgpu.0": "", "var/lib/dpkg/status": packages})
    [gpu] = sysfs.gpus(root, every)
    assert (gpu.vendor, gpu.name, gpu.driver) == ("Moore Threads", "M1000", "mtgpu 4.1.0-M1000")


def test_a_card_without_a_driver_is_still_seen_on_the_bus(tmp_path):
    device = "sys/bus/pci/devices/0000:03:00.0"
    root = write(
        tmp_path, {f"{device}/vendor": "0x1002\n", f"{device}/device": "0x744c\n", f"{device}/class": "0x030000\n"}
    )
    [gpu] = sysfs.gpus(root, every)
    assert (gpu.vendor, gpu.name, gpu.problems) == ("AMD", "GPU 744c", ("no kernel driver is bound to it",))


def test_a_card_whose_driver_offers_no_computing_says_so(tmp_path):
    device = "sys/bus/pci/devices/0000:03:00.0"
    root = write(tmp_path, {f"{device}/vendor": "0x10de\n", f"{device}/class": "0x030000\n",
                            "sys/bus/pci/drivers/nouveau/x": ""})  # fmt: skip
    (root / device / "driver").symlink_to(root / "sys/bus/pci/drivers/nouveau")
    [gpu] = sysfs.gpus(root, every)
    assert gpu.driver == "nouveau" and "not the one for computing" in gpu.problems[0]


def test_network_cards_and_unknown_vendors_are_not_listed(tmp_path):
    files = {
        "sys/bus/pci/devices/a/vendor": "0x10de\n",
        "sys/bus/pci/devices/a/class": "0x020000\n",
        "sys/bus/pci/devices/b/vendor": "0x1234\n",
        "sys/bus/pci/devices/b/class": "0x030000\n",
    }
    assert sysfs.gpus(write(tmp_path, files), every) == []


def test_garbage_in_the_files_is_left_out_not_guessed(tmp_path):
    root = radeon(tmp_path)
    (root / "sys/class/drm/renderD128/device/mem_info_vram_total").write_bytes(b"\xff\xfe")
    [gpu] = sysfs.gpus(root, every)
    assert gpu.total_bytes is None


def test_a_processor_is_read_with_cores_caches_and_features(tmp_path):
    files = {"proc/cpuinfo": "processor : 0\nmodel name : Test CPU\nflags : fpu avx2 fma avx512_vnni\n"}
    for number in range(4):
        folder = f"sys/devices/system/cpu/cpu{number}/topology"
        files[f"{folder}/core_id"] = f"{number // 2}\n"
        files[f"{folder}/physical_package_id"] = "0\n"
    cache = "sys/devices/system/cpu/cpu0/cache"
    for index, (level, kind, size) in enumerate(
        (("1", "Data", "32K"), ("2", "Unified", "1024K"), ("3", "Unified", "32M"))
    ):
        files |= {f"{cache}/index{index}/{n}": v for n, v in (("level", level), ("type", kind), ("size", size))}
    cpu = sysfs.cpu(write(tmp_path, files))
    assert (cpu.model, cpu.physical_cores, cpu.sockets) == ("Test CPU", 2, 1)
    assert cpu.features == ("fma", "avx2", "avx512_vnni")
    assert cpu.caches == {"L1d": 32768, "L2": 1048576, "L3": 33554432}


def test_without_any_file_there_is_still_a_processor(tmp_path):
    cpu = sysfs.cpu(tmp_path)
    assert cpu.physical_cores >= 1 and cpu.model


def test_this_machine_can_be_read():
    cpu = sysfs.cpu()
    assert cpu.usable_cores >= 1
    assert isinstance(sysfs.gpus(), list)


def test_overrides_are_those_that_are_set():
    given = {"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}
    assert sysfs.overrides(lambda name: given.get(name, "")) == given
