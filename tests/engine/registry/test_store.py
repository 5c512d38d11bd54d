"""The store: manifests, shared blobs, locks, housekeeping, read-only disks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from strata_engine.registry import locks
from strata_engine.registry.atomic import write_bytes
from strata_engine.registry.catalog import Catalog
from strata_engine.registry.housekeeping import drop_damaged, list_cache, prune, verify_all
from strata_engine.registry.reference import parse
from strata_engine.registry.resolve import Missing, resolve
from strata_engine.registry.store import Store
from tests.support.program import SOURCES
from tests.support.registry import gguf_like, put_model, sha, store_in

A, B, C = (gguf_like(1000, seed=i) for i in range(3))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_in(tmp_path)


def test_reading_an_empty_store_makes_nothing(store: Store, tmp_path: Path):
    assert store.manifests() == []
    assert store.aliases() == {}
    assert list_cache(store) == []
    assert list(tmp_path.iterdir()) == []


def test_a_shared_blob_is_kept_until_its_last_model_goes(store: Store):
    one = put_model(store, "one:x", {"a.gguf": A, "b.gguf": B})
    two = put_model(store, "two:x", {"b.gguf": B, "c.gguf": C})
    first = store.remove(one)
    assert (first.freed_bytes, first.dropped, first.kept) == (1000, (sha(A),), (sha(B),))
    assert store.has_blob(sha(B))
    assert store.remove(two).freed_bytes == 2000
    assert list(store.blobs()) == []
    assert list(store.trees.iterdir()) == []


def test_a_dry_run_removes_nothing(store: Store):
    one = put_model(store, "one:x", {"a.gguf": A})
    assert store.remove(one, dry_run=True).freed_bytes == 1000
    assert store.is_whole(one)


def test_a_model_is_not_written_when_a_file_vanished(store: Store):
    made = put_model(store, "one:x", {"a.gguf": A})
    store.remove(made)
    assert not store.write(made)
    assert store.manifests() == []


def test_a_model_of_several_files_shows_them_under_their_names(store: Store):
    made = put_model(store, "one:x", {"x-00001-of-00002.gguf": A, "x-00002-of-00002.gguf": B})
    files = store.local_files(made)
    assert [f.path.name for f in files] == ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"]
    assert [f.path.read_bytes() for f in files] == [A, B]


def test_moving_the_store_keeps_its_links(store: Store, tmp_path: Path):
    put_model(store, "one:x", {"a.gguf": A, "b.gguf": B})
    moved = tmp_path.with_name("moved")
    tmp_path.rename(moved)
    again = store_in(moved)
    assert [f.path.read_bytes() for f in again.local_files(again.manifests()[0])] == [A, B]
    moved.rename(tmp_path)


def test_verify_finds_a_hole_of_zeros(store: Store):
    put_model(store, "one:x", {"a.gguf": gguf_like(200_000)})
    blob = store.blob(sha(gguf_like(200_000)))
    data = blob.read_bytes()
    blob.write_bytes(data[:65_536] + bytes(65_536) + data[131_072:])
    problems = verify_all(store)
    assert [(p.reference, p.what) for p in problems] == [("one:x", "content")]
    assert drop_damaged(store, problems) == [blob]
    assert [p.what for p in verify_all(store)] == ["missing"]


def test_verify_passes_whole_models(store: Store):
    put_model(store, "one:x", {"a.gguf": A})
    assert verify_all(store) == []


def test_prune_takes_what_no_model_needs(store: Store):
    put_model(store, "one:x", {"a.gguf": A})
    gone = put_model(store, "two:x", {"b.gguf": B, "c.gguf": C})
    (store.paths.manifests / f"{gone.key}.json").unlink()
    store.paths.partial.mkdir(parents=True)
    (store.paths.partial / "x.part").write_bytes(b"1" * 100)
    (store.paths.partial / "lonely.part.json").write_text("{}")
    (store.paths.blobs / ".tmp123.tmp").write_text("")
    kinds = {i.kind for i in list_cache(store)}
    assert kinds == {"model", "partial", "unused", "stray"}
    assert prune(store, dry_run=True).items == prune(store).items
    assert [i.kind for i in list_cache(store)] == ["model"]
    assert store.has_blob(sha(A))


def test_prune_leaves_what_is_younger(store: Store):
    store.paths.partial.mkdir(parents=True)
    (store.paths.partial / "x.part").write_bytes(b"1")
    assert prune(store, older_than_s=3600).items == ()
    assert len(prune(store, older_than_s=3600, now=time.time() + 7200).items) == 1


def test_prune_leaves_everything_that_a_running_pull_may_need(store: Store):
    put_model(store, "one:x", {"a.gguf": A})
    next(store.paths.manifests.glob("*.json")).unlink()
    part = store.paths.partial / f"{sha(B)}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"1")
    with locks.hold(store.paths.partial / "model.1.pull"), locks.hold(store.blob_lock(sha(B))):
        result = prune(store)
        assert result.items == ()
        assert "a download is running" in result.kept[0]
    assert len(prune(store).items) == 2


def test_a_second_holder_waits_for_the_first(tmp_path: Path):
    lock, order = tmp_path / "x.lock", []
    entered, seen = threading.Event(), threading.Event()

    def second() -> None:
        with locks.hold(lock, lambda owner: (order.append(owner.pid), seen.set()), poll_s=0.01):
            order.append("second")

    with locks.hold(lock):
        thread = threading.Thread(target=second)
        thread.start()
        entered.set()
        assert seen.wait(5)
        order.append("first")
    thread.join()
    assert order[0] == os.getpid()
    assert order.index("first") < order.index("second")
    assert not lock.exists()


def test_a_lock_file_of_a_dead_process_blocks_nobody(tmp_path: Path):
    lock = tmp_path / "x.lock"
    code = ("import os, sys\nfrom pathlib import Path\nfrom strata_engine.registry import locks\n"
            "held = locks.hold(Path(sys.argv[1]))\nheld.__enter__()\nos.kill(os.getpid(), 9)\n")  # fmt: skip
    subprocess.run([sys.executable, "-c", code, str(lock)], env={"PYTHONPATH": SOURCES}, check=False, timeout=30)
    assert lock.exists()
    assert not locks.is_held(lock)
    waited: list[locks.Owner] = []
    with locks.hold(lock, waited.append):
        assert locks.is_held(lock)
    assert waited == []


def test_a_lock_tells_its_owner(tmp_path: Path):
    with locks.hold(tmp_path / "x.lock"):
        assert locks.owner(tmp_path / "x.lock").pid == os.getpid()
    assert locks.owner(tmp_path / "gone.lock") == locks.Owner()


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "f"
    write_bytes(file, b"old")

    def fail(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_bytes(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_store_that_cannot_be_written_still_resolves(store: Store, read_only_copy):
    put_model(store, "one:x", {"a.gguf": A, "b.gguf": B})
    frozen = store_in(read_only_copy(store.paths.models.parents[1]))
    files = resolve(parse("one"), Catalog([]), frozen)
    assert not isinstance(files, Missing)
    assert [f.path.read_bytes() for f in files.files] == [A, B]
    assert [i.kind for i in list_cache(frozen)] == ["model"]
    assert not frozen.pulls_running()
