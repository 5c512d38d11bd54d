"""Disks of their own for tests: read-only and small ones need the right to mount."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def _mount(*args: str) -> bool:
    return subprocess.run(["mount", *args], capture_output=True, check=False).returncode == 0


@pytest.fixture
def read_only_copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Path]]:
    """Copies a folder to a place that cannot be written: a read-only mount, else a folder without write permission."""
    made: list[tuple[Path, bool]] = []

    def copy(source: Path) -> Path:
        place = tmp_path_factory.mktemp("frozen")
        mounted = _mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place))
        shutil.copytree(source, place, symlinks=True, dirs_exist_ok=True)
        if mounted:
            subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        else:
            for folder in [place, *(p for p in place.rglob("*") if p.is_dir() and not p.is_symlink())]:
                folder.chmod(0o555)
        made.append((place, mounted))
        return place

    yield copy
    for place, mounted in made:
        if mounted:
            subprocess.run(["umount", str(place)], check=False)
        else:
            for folder in [place, *(p for p in place.rglob("*") if p.is_dir() and not p.is_symlink())]:
                folder.chmod(0o755)


@pytest.fixture
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk of 12 MiB; skipped where nothing may be mounted."""
    place = tmp_path_factory.mktemp("small")
    if not _mount("-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)):
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=False)
