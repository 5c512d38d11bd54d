"""Reference -> files: order of look-up, paths, shards, near names. No network at any point."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strata_engine.errors import CorruptFile, NotFound, UsageError
from strata_engine.registry.catalog import Catalog
from strata_engine.registry.files import ModelFiles
from strata_engine.registry.reference import parse
from strata_engine.registry.resolve import Missing, not_registered, pullable, resolve
from strata_engine.registry.store import Store
from tests.support.registry import catalog_of, gguf_like, put_model, sha, store_in

BODY = gguf_like(2000)
TEXT = f"""models:
  - name: tiny
    aliases: [small]
    source: {{repo: u/r}}
    variants:
      a: {{files: [{{path: m.gguf, size: {len(BODY)}, sha256: {sha(BODY)}}}]}}
      b: {{files: [n.gguf]}}
    defaults: {{ctx: 512}}
    chat: {{system: hello}}
  - name: fq
    source: {{local: true, note: nowhere public}}
    defaults: {{top_k: 7}}
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_in(tmp_path / "home")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return catalog_of(tmp_path / "catalog", TEXT)


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)


def found(text: str, catalog: Catalog, store: Store) -> ModelFiles:
    files = resolve(parse(text), catalog, store)
    assert isinstance(files, ModelFiles)
    return files


def test_a_catalog_model_that_is_not_here_is_missing(catalog: Catalog, store: Store):
    missing = resolve(parse("small"), catalog, store)
    assert isinstance(missing, Missing)
    assert missing.name == "tiny:a"
    assert not missing.local_only


def test_a_downloaded_model_brings_the_catalogs_rules(catalog: Catalog, store: Store):
    put_model(store, "tiny:a", {"m.gguf": BODY})
    files = found("small", catalog, store)
    assert (files.name, files.reference, files.variant) == ("tiny", "tiny:a", "a")
    assert files.defaults == {"ctx": 512}
    assert files.chat == {"system": "hello"}
    assert files.files[0].path.read_bytes() == BODY


def test_another_downloaded_variant_is_used_and_said(catalog: Catalog, store: Store):
    put_model(store, "tiny:b", {"n.gguf": BODY + b"1"})
    files = found("tiny", catalog, store)
    assert files.variant == "b"
    assert "the default is a" in files.notes[0]
    assert isinstance(resolve(parse("tiny:a"), catalog, store), Missing)


def test_an_unknown_variant_lists_the_known_ones(catalog: Catalog, store: Store):
    with pytest.raises(NotFound, match="no variant z") as caught:
        resolve(parse("tiny:z"), catalog, store)
    assert caught.value.hint == "one of: a, b"


def test_a_lost_manifest_does_not_lose_the_model(catalog: Catalog, store: Store):
    put_model(store, "tiny:a", {"m.gguf": BODY})
    next(store.paths.manifests.glob("*.json")).unlink()
    assert found("tiny", catalog, store).files[0].path == store.blob(sha(BODY))


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "llmrun.manifest.v9"}', '{"schema": "llmrun.manifest.v1"}'])
def test_a_damaged_manifest_counts_as_absent(catalog: Catalog, store: Store, text: str):
    put_model(store, "hf.co/u/x", {"m.gguf": BODY})
    next(store.paths.manifests.glob("*.json")).write_text(text)
    assert isinstance(resolve(parse("u/x"), catalog, store), Missing)


def test_a_model_with_a_cut_blob_is_missing(catalog: Catalog, store: Store):
    put_model(store, "tiny:a", {"m.gguf": BODY})
    store.blob(sha(BODY)).write_bytes(BODY[:-1])
    assert isinstance(resolve(parse("tiny"), catalog, store), Missing)


def test_newer_files_in_the_catalog_are_said(catalog: Catalog, store: Store):
    put_model(store, "tiny:a", {"m.gguf": BODY + b"old"})
    assert "newer files" in found("tiny", catalog, store).notes[0]


def test_an_unknown_name_has_near_ones(catalog: Catalog, store: Store):
    put_model(store, "tinier:x", {"m.gguf": BODY})
    with pytest.raises(NotFound, match="no model named tini") as caught:
        resolve(parse("tini"), catalog, store)
    assert set(caught.value.details["near"]) == {"tiny", "tinier"}
    assert caught.value.exit_code == 3


def test_a_model_without_a_public_source_says_how_to_register_it(catalog: Catalog, store: Store):
    missing = resolve(parse("fq"), catalog, store)
    assert isinstance(missing, Missing)
    assert missing.local_only
    error = not_registered(missing)
    assert "nowhere public" in error.message
    assert "llmrun cp PATH fq" in error.hint


def test_a_name_of_the_user_gives_a_catalog_model_its_files(catalog: Catalog, store: Store):
    Path("m.gguf").write_bytes(BODY)
    store.set_alias("fq", str(Path("m.gguf").absolute()))
    files = found("fq", catalog, store)
    assert files.name == "fq"
    assert files.defaults == {"top_k": 7}


def test_an_alias_wins_over_a_directory_and_says_so(catalog: Catalog, store: Store):
    put_model(store, "tiny:a", {"m.gguf": BODY})
    Path("mine").mkdir()
    Path("mine/other.gguf").write_bytes(BODY + b"2")
    store.set_alias("mine", "tiny")
    files = found("mine", catalog, store)
    assert files.files[0].sha256 == sha(BODY)
    assert "./mine" in files.notes[0]
    assert found("./mine", catalog, store).files[0].name == "other.gguf"


def test_a_catalog_name_wins_over_a_directory_and_says_so(catalog: Catalog, store: Store):
    put_model(store, "tiny:a", {"m.gguf": BODY})
    Path("tiny").mkdir()
    assert "./tiny" in found("tiny", catalog, store).notes[0]


def test_an_alias_can_name_a_repository_and_a_variant(catalog: Catalog, store: Store):
    put_model(store, "hf.co/u/x:Q8_0", {"x-Q8_0.gguf": BODY})
    store.set_alias("x", "u/x:Q8_0")
    assert found("x", catalog, store).reference == "hf.co/u/x:Q8_0"


def test_aliases_that_lead_in_a_circle_are_refused(catalog: Catalog, store: Store):
    store.set_alias("a", "b")
    store.set_alias("b", "a")
    for look in (resolve, pullable):
        with pytest.raises(UsageError, match="a -> b -> a"):
            look(parse("a"), catalog, store)


def test_odd_alias_names_survive_the_file(store: Store):
    for name in ("no", "1.0", "ключ", "null"):
        store.set_alias(name, "./p: #x")
    assert store.aliases() == dict.fromkeys(("no", "1.0", "ключ", "null"), "./p: #x")


def test_a_broken_alias_file_names_its_line(catalog: Catalog, store: Store):
    store.set_alias("a", "b")
    store.alias_file.write_text("a: b\nc: [x]\n")
    with pytest.raises(UsageError, match=r"aliases.yaml, line 2"):
        resolve(parse("a"), catalog, store)


@pytest.mark.parametrize("text", ["m.gguf", "./m.gguf", "sub/../m.gguf"])
def test_a_file_is_a_model(catalog: Catalog, store: Store, text: str):
    Path("m.gguf").write_bytes(BODY)
    Path("sub").mkdir()
    files = found(text, catalog, store)
    assert files.name == "m"
    assert files.files[0].path.read_bytes() == BODY
    assert files.reference == str(files.files[0].path)


def test_a_relative_directory_that_looks_like_a_repository_is_a_path(catalog: Catalog, store: Store):
    Path("models/tiny").mkdir(parents=True)
    Path("models/tiny/m.gguf").write_bytes(BODY)
    assert found("models/tiny", catalog, store).files[0].name == "m.gguf"


def test_a_plain_directory_name_is_a_path(catalog: Catalog, store: Store):
    Path("here").mkdir()
    Path("here/m.gguf").write_bytes(BODY)
    assert found("here", catalog, store).files[0].name == "m.gguf"


@pytest.mark.parametrize("shard", [1, 2, 3])
def test_any_shard_means_all_of_them(catalog: Catalog, store: Store, shard: int):
    names = [f"x-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for name in names:
        Path(name).write_bytes(BODY)
    files = found(names[shard - 1], catalog, store)
    assert [f.name for f in files.files] == names
    assert files.name == "x"


def test_a_missing_shard_is_named(catalog: Catalog, store: Store):
    for i in (1, 3):
        Path(f"x-0000{i}-of-00003.gguf").write_bytes(BODY)
    with pytest.raises(CorruptFile, match=r"x-00002-of-00003.gguf") as caught:
        resolve(parse("./x-00001-of-00003.gguf"), catalog, store)
    assert caught.value.exit_code == 6


def test_an_oddly_named_shard_says_its_right_name(catalog: Catalog, store: Store):
    Path("x-2-of-3.gguf").write_bytes(BODY)
    with pytest.raises(CorruptFile) as caught:
        resolve(parse("./x-2-of-3.gguf"), catalog, store)
    assert "x-00002-of-00003.gguf" in caught.value.hint


def checkpoint(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", *names):
        (folder / name).write_text("{}")
    return folder


def test_a_checkpoint_directory_is_a_model(catalog: Catalog, store: Store):
    checkpoint(Path("c"), "model.safetensors", "README.md", "chat_template.jinja", "training_args.bin")
    files = found("./c", catalog, store)
    assert files.directory == Path("c").absolute()
    assert {f.name: f.role for f in files.files} == {"config.json": "config", "tokenizer.json": "tokenizer",
            "model.safetensors": "weights", "chat_template.jinja": "template"}  # fmt: skip


def test_the_index_of_a_checkpoint_names_its_shards(catalog: Catalog, store: Store):
    folder = checkpoint(Path("c"), "a-1.safetensors", "stray.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"w": "a-1.safetensors", "v": "a-2.safetensors"}}')
    with pytest.raises(CorruptFile, match=r"a-2.safetensors"):
        resolve(parse("./c"), catalog, store)
    (folder / "a-2.safetensors").write_text("{}")
    assert [f.name for f in found("./c", catalog, store).role("weights")] == ["a-1.safetensors", "a-2.safetensors"]
    index.write_text("[]")
    with pytest.raises(CorruptFile, match="not a safetensors index"):
        resolve(parse("./c"), catalog, store)


@pytest.mark.parametrize(("names", "message"), [
    ([], "holds no model"), (["config.json"], r"no .safetensors"), (["a.gguf", "b.gguf"], "holds 2 models"),
    (["notes.txt"], "holds no model"),
])  # fmt: skip
def test_a_directory_without_one_model_is_a_usage_error(catalog: Catalog, store: Store, names: list[str], message: str):
    Path("d").mkdir()
    for name in names:
        Path("d", name).write_text("{}")
    with pytest.raises(UsageError, match=message):
        resolve(parse("./d"), catalog, store)


def test_a_projector_beside_a_model_is_told_apart(catalog: Catalog, store: Store):
    Path("d").mkdir()
    for name in ("m.gguf", "mmproj-F16.gguf"):
        Path("d", name).write_bytes(BODY)
    files = found("./d", catalog, store)
    assert [f.name for f in files.role("weights")] == ["m.gguf"]
    assert [f.name for f in files.role("mmproj")] == ["mmproj-F16.gguf"]


@pytest.mark.parametrize(("names", "taken"), [
    (["m.gguf", "mmproj.gguf"], "mmproj.gguf"),
    (["m.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-Q8_0.gguf"], "mmproj-F16.gguf"),
    (["m.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf"], "mmproj-F16.gguf"),  # two quants of one model
    (["m.gguf", "other.gguf", "mmproj-F16.gguf"], ""),  # whose is it?
    (["m.gguf", "other.gguf", "mmproj-other-F16.gguf"], ""),
    (["m.gguf", "other.gguf", "mmproj-other-F16.gguf", "M-mmproj-f16.gguf"], "M-mmproj-f16.gguf"),
    (["m.gguf", "m.safetensors", "mmproj.txt"], ""),
])  # fmt: skip
def test_a_file_finds_its_projector_beside_it(catalog: Catalog, store: Store, names: list[str], taken: str):
    for name in names:
        Path(name).write_bytes(BODY)
    files = found("./m.gguf", catalog, store)
    assert [f.name for f in files.role("weights")] == ["m.gguf"]
    assert [f.name for f in files.role("mmproj")] == ([taken] if taken else [])


def test_a_pulled_model_brings_its_projector(store: Store, tmp_path: Path):
    listed = "[{path: v.gguf}, {path: mmproj-v.gguf, role: mmproj}]"
    catalog = catalog_of(
        tmp_path / "seeing",
        f"models:\n  - name: vl\n    source: {{repo: u/r}}\n    variants:\n      q: {{files: {listed}}}\n",
    )
    put_model(store, "vl:q", {"v.gguf": BODY, "mmproj-v.gguf": BODY + b"1"})
    files = found("vl", catalog, store)
    assert [[f.name for f in files.role(role)] for role in ("weights", "mmproj")] == [["v.gguf"], ["mmproj-v.gguf"]]


@pytest.mark.parametrize("text", ["./gone.gguf", "/no/such/dir", "gone.gguf"])
def test_a_path_that_is_not_there_is_not_found(catalog: Catalog, store: Store, text: str):
    with pytest.raises(NotFound, match="no such file or directory"):
        resolve(parse(text), catalog, store)


def test_a_pipe_is_no_model(catalog: Catalog, store: Store):
    os.mkfifo("pipe.gguf")
    with pytest.raises(UsageError, match="neither a file nor a directory"):
        resolve(parse("./pipe.gguf"), catalog, store)


def test_a_broken_link_is_not_found(catalog: Catalog, store: Store):
    Path("l.gguf").symlink_to("nowhere")
    with pytest.raises(NotFound):
        resolve(parse("./l.gguf"), catalog, store)


def test_a_catalog_entry_may_point_to_a_path(tmp_path: Path, store: Store):
    catalog = catalog_of(
        tmp_path / "own", "models:\n  - {name: mine, source: {local: true, path: m.gguf}, defaults: {ctx: 9}}\n"
    )
    (tmp_path / "own" / "m.gguf").write_bytes(BODY)
    files = found("mine", catalog, store)
    assert files.files[0].path == tmp_path / "own" / "m.gguf"
    assert files.defaults == {"ctx": 9}


def test_a_path_has_nothing_to_pull(catalog: Catalog, store: Store):
    Path("m.gguf").write_bytes(BODY)
    assert pullable(parse("./m.gguf"), catalog, store) is None
    assert pullable(parse("tiny"), catalog, store) is not None
