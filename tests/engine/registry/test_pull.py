"""Whole pulls: hubs, source order, gated repositories, the store afterwards."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_engine.errors import (
    AuthError,
    CorruptFile,
    HashMismatch,
    LlmrunError,
    NetworkError,
    NotFound,
    OutOfMemory,
)
from strata_engine.registry import pull as pull_module
from strata_engine.registry.catalog import Catalog
from strata_engine.registry.plan import drafter_missing, make_plan
from strata_engine.registry.pull import pull
from strata_engine.registry.reference import parse
from strata_engine.registry.resolve import Missing, resolve
from strata_engine.registry.sources import Hubs
from strata_engine.registry.store import Store
from tests.support.fake_hub import COMMIT, FakeHub
from tests.support.registry import Events, catalog_of, gguf_like, options, pull_text, sha, store_in

MODEL = gguf_like(300_000)
NONE = Catalog([])


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_in(tmp_path / "home")


def entry(sources: str, body: bytes = MODEL, name: str = "tiny") -> str:
    return (f"models:\n  - name: {name}\n    sources: [{sources}]\n    files:\n"
            f"      - {{path: m.gguf, size: {len(body)}, sha256: {sha(body)}}}\n")  # fmt: skip


def test_a_pulled_model_resolves_to_the_same_bytes(hub: FakeHub, store: Store, tmp_path: Path):
    hub.repository("u/r", {"m.gguf": MODEL})
    catalog = catalog_of(tmp_path, entry(f"{{repo: u/r, revision: {COMMIT}}}"))
    pull_text("tiny", store, catalog, options(hub.url))
    files = resolve(parse("tiny"), catalog, store)
    assert not isinstance(files, Missing)
    assert files.files[0].path.read_bytes() == MODEL
    assert files.files[0].sha256 == sha(MODEL)


def test_a_model_with_known_files_needs_no_listing(hub: FakeHub, store: Store, tmp_path: Path):
    hub.repository("u/r", {"m.gguf": MODEL})
    pull_text("tiny", store, catalog_of(tmp_path, entry(f"{{repo: u/r, revision: {COMMIT}}}")), options(hub.url))
    assert not [a for a in hub.asked if a.path.startswith("/api/")]


def test_every_call_goes_to_the_endpoint(hub: FakeHub, store: Store):
    hub.repository("u/r", {"m-Q4_K_M.gguf": MODEL})
    pull_text("hf.co/u/r", store, NONE, options(hub.url))
    paths = {a.path for a in hub.asked}
    assert paths == {"/api/models/u/r/revision/main", f"/u/r/resolve/{COMMIT}/m-Q4_K_M.gguf"}


def test_a_second_pull_fetches_nothing(hub: FakeHub, store: Store, tmp_path: Path):
    hub.repository("u/r", {"m.gguf": MODEL})
    catalog = catalog_of(tmp_path, entry(f"{{repo: u/r, revision: {COMMIT}}}"))
    pull_text("tiny", store, catalog, options(hub.url))
    hub.asked.clear()
    events = Events()
    pull_text("tiny", store, catalog, options(hub.url), events)
    assert hub.asked == []
    assert [p.event for p in events] == ["have"]


def test_a_pulled_model_needs_no_network(hub: FakeHub, store: Store):
    hub.repository("u/r", {"m-Q4_K_M.gguf": MODEL})
    pull_text("u/r", store, NONE, options(hub.url))
    assert not isinstance(resolve(parse("u/r"), NONE, store), Missing)
    assert not isinstance(resolve(parse("hf.co/u/r:q4_k_m"), NONE, store), Missing)


def test_a_silent_source_costs_its_time_and_the_switch_is_said(hub: FakeHub, store: Store, tmp_path: Path):
    hub.serve("/api/models/u/r", silent=True)
    with FakeHub() as good:
        url = good.serve("/m.gguf", MODEL, etag='"1"')
        catalog = catalog_of(tmp_path, entry(f"{{repo: u/r}}, {{url: '{url}'}}"))
        events = Events()
        began = time.monotonic()
        pull_text("tiny", store, catalog, options(hub.url, answer_s=0.5), events)
        assert time.monotonic() - began < 20  # the source would be silent for ever
    assert [p.event for p in events if p.event in ("source", "switch", "done")] == [
        "source",
        "switch",
        "source",
        "done",
    ]
    assert "0.5 s" in events.of("switch")[0].message or "does not answer" in events.of("switch")[0].message


def test_an_unreachable_source_is_left_for_the_next(hub: FakeHub, store: Store, tmp_path: Path):
    url = hub.serve("/m.gguf", MODEL)
    catalog = catalog_of(tmp_path, entry(f"{{repo: u/r}}, {{url: '{url}'}}"))
    pull_text("tiny", store, catalog, options("http://127.0.0.1:1"))
    assert store.has_blob(sha(MODEL))


def test_a_source_with_another_file_is_left_for_the_next(hub: FakeHub, store: Store, tmp_path: Path):
    wrong = hub.serve("/a/m.gguf", gguf_like(len(MODEL), seed=9))
    right = hub.serve("/b/m.gguf", MODEL)
    events = Events()
    pull_text("tiny", store, catalog_of(tmp_path, entry(f"{{url: '{wrong}'}}, {{url: '{right}'}}")), options(), events)
    assert store.has_blob(sha(MODEL))
    assert "sha256" in events.of("switch")[0].message


def test_a_damaged_file_is_fetched_once_more(hub: FakeHub, store: Store, tmp_path: Path):
    bad = bytes([*MODEL[:-1], MODEL[-1] ^ 1])
    url = hub.serve("/m.gguf", MODEL, bodies=[bad, bad], ranges="no")
    pull_text("tiny", store, catalog_of(tmp_path, entry(f"{{url: '{url}'}}")), options())
    assert store.blob(sha(MODEL)).read_bytes() == MODEL


def test_a_file_that_stays_damaged_leaves_nothing_behind(hub: FakeHub, store: Store, tmp_path: Path):
    url = hub.serve("/m.gguf", bytes([*MODEL[:-1], MODEL[-1] ^ 1]))
    with pytest.raises(HashMismatch) as caught:
        pull_text("tiny", store, catalog_of(tmp_path, entry(f"{{url: '{url}'}}")), options())
    assert caught.value.exit_code == 6
    assert caught.value.details["expected"] == sha(MODEL)
    assert list(store.blobs()) == []
    assert list(store.paths.partial.glob("*.part*")) == []
    assert store.manifests() == []


def test_a_hole_of_zeros_in_a_partial_is_found(hub: FakeHub, store: Store, tmp_path: Path):
    # The journal says that all bytes are good; the disk lost a block (a sleep or a power cut).
    url = hub.serve("/m.gguf", MODEL, etag='"1"')
    part = store.paths.partial / f"{sha(MODEL)}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(MODEL[:100_000] + bytes(65_536) + MODEL[165_536:])
    part.with_name(part.name + ".json").write_text(
        f'{{"version": 1, "url": "{url}", "identity": "\\"1\\"", "size": {len(MODEL)}, "sha256": "{sha(MODEL)}",'
        f' "ranges": [[0, {len(MODEL)}]]}}'
    )
    pull_text("tiny", store, catalog_of(tmp_path, entry(f"{{url: '{url}'}}")), options())
    assert store.blob(sha(MODEL)).read_bytes() == MODEL


def test_two_files_of_one_name_and_size_are_told_apart(hub: FakeHub, store: Store):
    other = gguf_like(len(MODEL), seed=5)
    hub.repository("a/r", {"m.gguf": MODEL})
    hub.repository("b/r", {"m.gguf": other})
    first = pull_text("a/r", store, NONE, options(hub.url))
    second = pull_text("b/r", store, NONE, options(hub.url))
    assert first.files[0].path.read_bytes() == MODEL
    assert second.files[0].path.read_bytes() == other


def test_all_shards_of_the_wanted_quant_are_fetched(hub: FakeHub, store: Store):
    names = [f"Q5_K_M/x-Q5_K_M-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    shards = {n: gguf_like(50_000, i) for i, n in enumerate(names)}
    hub.repository("u/r", {**shards, "x-Q4_K_M.gguf": MODEL})
    files = pull_text("u/r:q5_k_m", store, NONE, options(hub.url))
    assert [f.name for f in files.files] == [n.split("/")[1] for n in names]
    assert [f.path.read_bytes() for f in files.files] == list(shards.values())
    assert len({f.path.parent for f in files.files}) == 1


def test_a_missing_shard_is_said_before_anything_is_fetched(hub: FakeHub, store: Store):
    hub.repository("u/r", {f"x-Q5_K_M-0000{i}-of-00003.gguf": MODEL for i in (1, 3)})
    with pytest.raises(NotFound, match="x-Q5_K_M-00002-of-00003.gguf"):
        pull_text("u/r:Q5_K_M", store, NONE, options(hub.url))


def test_an_unclear_quant_lists_what_there_is(hub: FakeHub, store: Store):
    hub.repository("u/r", {"x-Q8_0.gguf": MODEL, "x-Q6_K.gguf": MODEL})
    with pytest.raises(NotFound, match="Q6_K, Q8_0"):
        pull_text("u/r", store, NONE, options(hub.url))
    with pytest.raises(NotFound, match="no file for Q4_K_M"):
        pull_text("u/r:Q4_K_M", store, NONE, options(hub.url))


def test_one_file_of_a_repository_can_be_named(hub: FakeHub, store: Store):
    hub.repository("u/r", {"a/x-Q8_0.gguf": MODEL, "x-Q6_K.gguf": gguf_like(1000)})
    files = pull_text("hf.co/u/r/a/x-Q8_0.gguf", store, NONE, options(hub.url))
    assert files.files[0].path.read_bytes() == MODEL


def test_a_checkpoint_arrives_as_a_directory(hub: FakeHub, store: Store):
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    weights = len(header).to_bytes(8, "little") + header + bytes(4)
    files = {"config.json": b'{"model_type": "llama"}', "model.safetensors": weights, "tokenizer.json": b"{}",
             "README.md": b"hi", "original/model.safetensors": weights}  # fmt: skip
    hub.repository("u/r", files, small=("config.json", "tokenizer.json", "README.md"))
    found = pull_text("u/r", store, NONE, options(hub.url))
    assert found.directory is not None
    assert {p.name for p in found.directory.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert (found.directory / "config.json").read_bytes() == files["config.json"]
    assert {f.name: f.role for f in found.files}["tokenizer.json"] == "tokenizer"
    hub.asked.clear()
    pull_text("u/r", store, NONE, options(hub.url))
    assert [a.path for a in hub.asked] == ["/api/models/u/r/revision/main"]


def test_a_project_of_other_files_is_no_model(hub: FakeHub, store: Store):
    hub.repository("u/r", {"README.md": b"hi", "pytorch_model.bin": b"PK"})
    with pytest.raises(NotFound, match="no model that can be read"):
        pull_text("u/r", store, NONE, options(hub.url))


@pytest.mark.parametrize("asked", [True, None, False])
def test_the_image_projector_comes_along_unless_it_is_declined(hub: FakeHub, store: Store, asked: bool | None):
    hub.repository(
        "u/r", {"x-Q4_K_M.gguf": MODEL, "mmproj-F16.gguf": gguf_like(500), "mmproj-F32.gguf": gguf_like(600)}
    )
    files = pull_text("u/r", store, NONE, options(hub.url, mmproj=asked))
    beside = {"mmproj-F16.gguf": "mmproj"} if asked is not False else {}
    assert {f.name: f.role for f in files.files} == {"x-Q4_K_M.gguf": "weights", **beside}


def test_a_projector_of_another_model_stays_where_it_is(hub: FakeHub, store: Store):
    hub.repository("u/r", {"a-Q4_K_M.gguf": MODEL, "b-Q8_0.gguf": gguf_like(900), "mmproj-b-F16.gguf": gguf_like(500)})
    files = pull_text("u/r:Q4_K_M", store, NONE, options(hub.url))
    assert [f.name for f in files.files] == ["a-Q4_K_M.gguf"]
    files = pull_text("u/r:Q8_0", store, NONE, options(hub.url))
    assert [f.name for f in files.files] == ["b-Q8_0.gguf", "mmproj-b-F16.gguf"]


def test_a_drafter_is_pulled_under_its_own_name(hub: FakeHub, store: Store, tmp_path: Path):
    hub.repository("d/d", {"mtp-x.gguf": MODEL})
    text = (
        entry("{repo: u/r}") + "    drafters: {mtp: {source: {repo: d/d}, files: [{path: mtp-x.gguf, role: draft}]}}\n"
    )
    catalog = catalog_of(tmp_path, text)
    missing = resolve(parse("tiny"), catalog, store)
    assert isinstance(missing, Missing)
    assert missing.entry is not None
    how = options(hub.url)
    hubs = Hubs(how.hubs, how.transfer)
    plan = make_plan(drafter_missing(missing.entry, missing.entry.drafters[0], missing), how, hubs, Events())
    pull(plan, store, Events(), hubs)
    hubs.close()
    files = resolve(parse("tiny+mtp"), catalog, store)
    assert not isinstance(files, Missing)
    assert files.role("draft")[0].path.read_bytes() == MODEL


REFUSALS = [
    ("", [401], {}, "no token is set"),
    ("", [403], {"X-Error-Code": "GatedRepo"}, "licence must be accepted"),
    ("hf_secret", [403], {}, "token has no access"),
    ("hf_secret", [401], {}, "token has no access"),
    ("hf_secret", [403], {"X-Error-Code": "GatedRepo"}, "licence was not accepted"),
]


@pytest.mark.parametrize(("token", "status", "headers", "text"), REFUSALS)
def test_a_refused_repository_says_why(hub: FakeHub, store: Store, token: str, status: list[int], headers, text: str):
    hub.repository("u/r", {"m.gguf": MODEL})
    listing = hub.served["/api/models/u/r/revision/main"]
    listing.status, listing.status_headers = list(status), headers
    with pytest.raises(AuthError, match=text) as caught:
        pull_text("u/r", store, NONE, options(hub.url, hub_hf_token=token))
    assert caught.value.exit_code == 4
    assert "hf_secret" not in f"{caught.value.message} {caught.value.hint} {caught.value.details}"


def test_a_token_opens_a_gated_repository(hub: FakeHub, store: Store):
    hub.repository("u/r", {"m.gguf": MODEL}, token="hf_secret")
    pull_text("u/r", store, NONE, options(hub.url, hub_hf_token="hf_secret"))
    assert store.has_blob(sha(MODEL))


def test_a_listing_cannot_name_places_outside_the_store(hub: FakeHub, store: Store):
    sibling = f'{{"rfilename": "m.gguf", "size": {len(MODEL)}, "lfs": {{"sha256": "../../evil"}}}}'
    listing = f'{{"sha": "x", "siblings": [{sibling}]}}'
    hub.serve("/api/models/u/r/revision/main", listing.encode(), content_type="application/json")
    hub.serve("/u/r/resolve/x/m.gguf", MODEL)
    files = pull_text("u/r", store, NONE, options(hub.url))
    assert files.files[0].path == store.blob(sha(MODEL))
    assert [p.name for p in store.paths.blobs.iterdir()] == [f"sha256-{sha(MODEL)}"]


def test_an_unknown_repository_or_revision_is_not_found(hub: FakeHub, store: Store):
    with pytest.raises(NotFound, match="no such repository"):
        pull_text("u/nothing", store, NONE, options(hub.url))
    hub.serve("/api/models/u/r/revision/v9", status=[404], status_headers={"X-Error-Code": "RevisionNotFound"})
    with pytest.raises(NotFound, match="no revision v9"):
        pull_text("u/r@v9", store, NONE, options(hub.url))


def test_a_page_in_place_of_the_listing_is_said(hub: FakeHub, store: Store):
    hub.serve("/api/models/u/r/revision/main", b"<html>login</html>", content_type="text/html")
    with pytest.raises(NetworkError, match="an HTML page came in place of the listing"):
        pull_text("u/r", store, NONE, options(hub.url))


@pytest.mark.parametrize("body", [b"[]", b'{"sha": 1}', b'{"sha": "x", "siblings": [{}]}', b"null", b"{"])
def test_a_strange_listing_is_an_error_of_the_network(hub: FakeHub, store: Store, body: bytes):
    hub.serve("/api/models/u/r/revision/main", body, content_type="application/json")
    with pytest.raises(NetworkError):
        pull_text("u/r", store, NONE, options(hub.url))


def test_offline_ends_at_once_and_names_what_is_missing(store: Store, tmp_path: Path):
    catalog = catalog_of(tmp_path, entry("{repo: u/r}"))
    with pytest.raises(NetworkError, match=r"tiny is not on this disk \(m.gguf missing\)") as caught:
        pull_text("tiny", store, catalog, options(offline=True))
    assert caught.value.exit_code == 5
    with pytest.raises(NetworkError, match="u/r is not on this disk"):
        pull_text("u/r", store, NONE, options(offline=True))


def test_a_model_without_a_public_source_says_how_to_give_it_files(store: Store, tmp_path: Path):
    catalog = catalog_of(tmp_path, "models:\n  - {name: fq, source: {local: true, note: no place is known}}\n")
    with pytest.raises(NotFound, match="no place is known") as caught:
        pull_text("fq", store, catalog, options())
    assert "llmrun cp PATH fq" in caught.value.hint


def test_an_address_with_its_hash_is_pulled(hub: FakeHub, store: Store):
    url = hub.serve("/dir/my.gguf", MODEL)
    files = pull_text(f"{url}#sha256={sha(MODEL)}", store, NONE, options())
    assert files.name == "my"
    with pytest.raises(HashMismatch):
        pull_text(f"{url}#sha256={'0' * 64}", store, NONE, options())


def test_an_address_without_a_hash_is_pulled_and_looked_at(hub: FakeHub, store: Store):
    assert pull_text(hub.serve("/my.gguf", MODEL), store, NONE, options()).files[0].sha256 == sha(MODEL)
    with pytest.raises(CorruptFile, match="HTML"):
        pull_text(hub.serve("/bad.gguf", b"<html></html>" * 100), store, NONE, options())


def test_a_shard_address_fetches_its_siblings(hub: FakeHub, store: Store):
    bodies = [gguf_like(4000, i) for i in range(2)]
    urls = [hub.serve(f"/x-0000{i + 1}-of-00002.gguf", b) for i, b in enumerate(bodies)]
    files = pull_text(urls[1], store, NONE, options())
    assert [f.path.read_bytes() for f in files.files] == bodies


def test_modelscope_serves_as_a_source(hub: FakeHub, store: Store):
    listing = (f'{{"Code": 200, "Data": {{"Files": [{{"Path": "m.gguf", "Type": "blob", "Size": {len(MODEL)}, '
               f'"Sha256": "{sha(MODEL)}"}}, {{"Path": "d", "Type": "tree"}}]}}}}')  # fmt: skip
    hub.serve("/api/v1/models/u/r/repo/files", listing.encode(), content_type="application/json")
    hub.serve("/models/u/r/resolve/master/m.gguf", MODEL)
    files = pull_text("modelscope:u/r", store, NONE, options(hub_modelscope_endpoint=hub.url))
    assert files.files[0].path.read_bytes() == MODEL


def test_the_hugging_face_cache_is_read_and_not_copied(store: Store, tmp_path: Path):
    blob = tmp_path / "hf" / "models--u--r" / "blobs" / sha(MODEL)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(MODEL)
    catalog = catalog_of(tmp_path, entry("{repo: u/r}"))
    pull_text("tiny", store, catalog, options(offline=True, hub_hf_cache=tmp_path / "hf"))
    files = resolve(parse("tiny"), catalog, store)
    assert not isinstance(files, Missing)
    assert files.files[0].path == blob
    assert list(store.blobs()) == []
    blob.unlink()
    assert isinstance(resolve(parse("tiny"), catalog, store), Missing)


def test_a_wrong_file_in_the_hugging_face_cache_is_not_taken(hub: FakeHub, store: Store, tmp_path: Path):
    blob = tmp_path / "hf" / "models--u--r" / "blobs" / sha(MODEL)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(bytes(len(MODEL)))
    catalog = catalog_of(tmp_path, entry(f"{{url: '{hub.serve('/m.gguf', MODEL)}'}}"))
    pull_text("tiny", store, catalog, options(hub_hf_cache=tmp_path / "hf"))
    assert store.has_blob(sha(MODEL))


def test_verify_full_replaces_a_damaged_blob(hub: FakeHub, store: Store, tmp_path: Path):
    catalog = catalog_of(tmp_path, entry(f"{{url: '{hub.serve('/m.gguf', MODEL)}'}}"))
    pull_text("tiny", store, catalog, options())
    blob = store.blob(sha(MODEL))
    blob.chmod(0o644)
    blob.write_bytes(bytes(len(MODEL)))
    pull_text("tiny", store, catalog, options(verify="full"))
    assert blob.read_bytes() == MODEL


def test_too_little_room_for_all_files_together_is_said_first(hub: FakeHub, store: Store, tmp_path: Path, monkeypatch):
    catalog = catalog_of(tmp_path, entry(f"{{url: '{hub.serve('/m.gguf', MODEL)}'}}"))
    usage = shutil.disk_usage(tmp_path)._replace(free=8_000_000)
    monkeypatch.setattr(pull_module.shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(OutOfMemory, match="300 kB more") as caught:
        pull_text("tiny", store, catalog, options())
    assert caught.value.details == {"needed_bytes": len(MODEL), "free_bytes": 8_000_000}
    assert hub.asked == []


def test_several_failed_sources_are_all_named(hub: FakeHub, store: Store, tmp_path: Path):
    url = hub.serve("/m.gguf", MODEL, status=[404] * 9)
    with pytest.raises(LlmrunError, match="no source could deliver it") as caught:
        pull_text("tiny", store, catalog_of(tmp_path, entry(f"{{repo: u/r}}, {{url: '{url}'}}")), options())
    assert len(caught.value.details["faults"]) == 2


@pytest.mark.parametrize("home", ["資料　x", "Café", "Загрузки", "Žaba", "with blank"])
def test_any_name_of_the_home_directory_will_do(hub: FakeHub, tmp_path: Path, home: str):
    store = store_in(tmp_path / home)
    hub.repository("u/r", {"a-00001-of-00002.gguf": MODEL, "a-00002-of-00002.gguf": gguf_like(900)})
    files = pull_text("u/r", store, NONE, options(hub.url))
    assert files.files[0].path.read_bytes() == MODEL
    assert not isinstance(resolve(parse("u/r"), NONE, store), Missing)


def test_partial_and_store_may_lie_on_different_disks(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import errno
    import os

    from strata_engine.registry import publish

    store = store_in(tmp_path)
    real = os.replace

    def replace(source, target) -> None:
        if str(source).endswith(".part"):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        real(source, target)

    monkeypatch.setattr(publish.os, "replace", replace)
    files = pull_text(hub.serve("/m.gguf", MODEL), store, NONE, options())
    assert files.files[0].path.read_bytes() == MODEL
    assert list(store.paths.partial.glob("*.part")) == []
