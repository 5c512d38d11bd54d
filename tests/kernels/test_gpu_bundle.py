"""Compiled kernels on disk: what is written comes back, and what is damaged or strange is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_kernels.gpu.bundle import BadEntry, Entry, Store, elf_marks, read_entry, stores
from strata_kernels.gpu.launch import Variant
from strata_kernels.gpu.sources import Sources
from strata_kernels.gpu.targets import TARGETS, arch_names, find_targets
from tests.support.gpu_kernels import entry_for, fake_code

ADD = Variant("add", ("*fp32", "*fp32", "*fp32", "i32"), (("BLOCK", 1024),))


def test_what_is_put_is_what_is_loaded(tmp_path: Path) -> None:
    store = Store(tmp_path, "gfx1100")
    entry = entry_for(ADD, "gfx1100")
    assert store.load(ADD) is None
    path = store.put(entry)
    assert store.load(ADD) == entry and list(store.files()) == [path] == [store.path(ADD)]
    assert entry.kernel == "add" and store.is_current(entry)
    assert [s.arch for s in stores(tmp_path)] == ["gfx1100"]
    assert not list(path.parent.glob(".part-*"))


def test_variants_do_not_share_files(tmp_path: Path) -> None:
    store = Store(tmp_path, "gfx1100")
    others = [
        Variant("add", ADD.types, (("BLOCK", 512),)),
        Variant("add", ("*fp32?", *ADD.types[1:]), ADD.constants),
        Variant("add", ADD.types, ADD.constants, warps=8),
    ]
    assert len({store.path(v) for v in (ADD, *others)}) == 4


@pytest.mark.parametrize("at", [0, 9, 20, -40, -1], ids=["magic", "length", "facts", "code", "sum"])
def test_any_changed_byte_is_refused(tmp_path: Path, at: int) -> None:
    store = Store(tmp_path, "gfx1100")
    path = store.put(entry_for(ADD, "gfx1100"))
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadEntry, match=path.name):
        store.load(ADD)


@pytest.mark.parametrize("keep", [0, 7, 30, 200])
def test_a_cut_file_is_refused(tmp_path: Path, keep: int) -> None:
    store = Store(tmp_path, "sm_90")
    path = store.put(entry_for(ADD, "sm_90"))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadEntry, match=path.name):
        store.load(ADD)


def test_code_of_another_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadEntry, match="no code for gfx1201"):
        Store(tmp_path, "gfx1201").put(entry_for(ADD, "gfx1201", code=fake_code("gfx1100")))
    path = Store(tmp_path, "gfx1100").put(entry_for(ADD, "gfx1100"))
    strange = tmp_path / "gfx1201" / path.name
    strange.parent.mkdir()
    strange.write_bytes(path.read_bytes())
    with pytest.raises(BadEntry, match="is for gfx1100, not for gfx1201"):
        Store(tmp_path, "gfx1201").load(ADD)


def test_an_entry_under_another_name_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path, "gfx1100")
    other = Variant("add", ADD.types, (("BLOCK", 512),))
    path = store.put(entry_for(other, "gfx1100"))
    path.rename(store.path(ADD))
    with pytest.raises(BadEntry, match="called otherwise"):
        store.load(ADD)


def test_another_version_of_the_launcher_is_refused() -> None:
    with pytest.raises(BadEntry, match="version 99"):
        read_entry(entry_for(ADD, "gfx1100", abi=99).to_bytes(), "somewhere")


def test_changed_sources_make_another_name(tmp_path: Path) -> None:
    folder = tmp_path / "triton"
    folder.mkdir()
    (folder / "elementwise.py").write_text("from strata_kernels.triton.shared import half\n")
    (folder / "shared.py").write_text("half = 1\n")
    first = Sources(folder).hash_of("add")
    assert Sources(folder).hash_of("add") == first
    (folder / "norm.py").write_text("x = 1\n")
    assert Sources(folder).hash_of("add") == first  # it is no part of it
    (folder / "shared.py").write_text("half = 2\n")
    assert Sources(folder).hash_of("add") != first


def test_old_sources_are_known_as_such(tmp_path: Path) -> None:
    store = Store(tmp_path, "gfx1100")
    assert not store.is_current(entry_for(ADD, "gfx1100", source="0" * 64))
    assert not store.is_current(Entry(**{**vars(entry_for(ADD, "gfx1100")), "key": "gone()[]w4s1"}))


def test_names_of_devices() -> None:
    assert [t.arch for t in find_targets(["all"])] == ["gfx1100", "gfx1201", "sm_90"]
    assert [t.arch for t in find_targets(["m1000"])] == ["mp_22"]
    assert set(arch_names()) == {"gfx1100", "gfx1201", "sm_90", "m1000", "all"}
    with pytest.raises(ValueError, match="gfx906"):
        find_targets(["gfx906"])


def test_elf_marks_of_anything() -> None:
    assert elf_marks(b"") == elf_marks(b"MZ" * 100) == (0, 0)
    assert elf_marks(fake_code("gfx1201")) == (TARGETS["gfx1201"].machine, 0x4E)
