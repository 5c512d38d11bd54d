"""The processor from /sys and /proc, read in made-up trees."""

from __future__ import annotations

from pathlib import Path

from strata_backends import sysfs


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


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
    assert sysfs.cpu().usable_cores >= 1
