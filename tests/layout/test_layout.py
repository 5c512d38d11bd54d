"""The folder tree: what must not exist, and what each folder holds."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:  # an unpacked source archive
        return [p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*") if p.is_file() and ".venv" not in p.parts]
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def test_backends_and_kernels_are_plain_folders():
    # A top-level package called `kernels` would overwrite a public package of that name.
    assert not (ROOT / "backends" / "__init__.py").exists()
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_the_four_packages_are_typed():
    for package in ("strata_cli", "strata_engine", "backends/strata_backends", "kernels/strata_kernels"):
        assert (ROOT / package / "py.typed").is_file()


def test_no_tracked_file_is_large():
    # The trained toy is the one exception; its own limit is ten million bytes a file.
    limits = {name: 10_000_000 if name.startswith("tests/fixtures/toy") else 3_000_000 for name in tracked()}
    sizes = {name: (ROOT / name).stat().st_size for name in limits}
    assert {name: size for name, size in sizes.items() if size > limits[name]} == {}


def test_no_registry_host_or_machine_path_is_tracked():
    # Spelled in pieces so that this file does not match itself.
    forbidden = ["py" + "pi.org", "python" + "hosted", "npm" + "js", "deb" + "ian.org", "/wo" + "rk/", "/tmp/" + "smol"]
    found = []
    for name in tracked():
        text = (ROOT / name).read_bytes().decode("utf-8", "ignore")
        found += [f"{name}: {word}" for word in forbidden if word in text]
    assert found == []


def test_no_conflict_of_a_merge_was_committed():
    marks = (b"<" * 7 + b" ", b">" * 7 + b" ")
    found = []
    for name in tracked():
        lines = (ROOT / name).read_bytes().splitlines()
        found += [f"{name}:{number}" for number, line in enumerate(lines, 1) if line.startswith(marks)]
    assert found == []


def test_vectors_name_their_source():
    folder = ROOT / "tests" / "vectors"
    folders = {p.parent for p in folder.rglob("*") if p.is_file()}
    assert [f.as_posix() for f in sorted(folders) if not any(q.name == "README.md" for q in f.iterdir())] == []
