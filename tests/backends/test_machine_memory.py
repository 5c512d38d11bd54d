"""Memory this process may count on, within a control group's limit."""

from __future__ import annotations

from strata_backends.machine import memory_bytes

MEMINFO = "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:   12000 kB\n"


def figures(folder, **files: str) -> tuple[int, int]:
    (folder / "meminfo").write_text(MEMINFO, encoding="ascii")
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text, encoding="ascii")
    return memory_bytes(folder, folder / "meminfo")


def test_without_a_limit_the_machine_counts(tmp_path):
    assert figures(tmp_path) == figures(tmp_path, max="max\n", current="5\n") == (16000 * 1024, 12000 * 1024)


def test_a_limit_caps_total_and_free(tmp_path):
    assert figures(tmp_path, max="4096000\n", current="1024000\n") == (4096000, 3072000)


def test_cached_file_pages_count_as_free(tmp_path):
    stat = "anon 24000\nfile 1000000\ninactive_file 900000\nactive_file 100000\n"
    assert figures(tmp_path, max="4096000\n", current="1024000\n", stat=stat) == (4096000, 4072000)


def test_a_limit_above_the_machine_changes_nothing(tmp_path):
    assert figures(tmp_path, max=f"{1 << 40}\n", current="0\n") == (16000 * 1024, 12000 * 1024)


def test_more_used_than_allowed_is_no_negative_room(tmp_path):
    assert figures(tmp_path, max="1000\n", current="2000\n")[1] == 0
