"""models.yaml: merging, strictness, messages with file and line (case CL-24)."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_engine.errors import UsageError
from strata_engine.registry.catalog import load_catalog, near_names, packaged_file


def written(folder: Path, text: str, name: str = "m.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    return written(tmp_path, "models: []\n", "packaged.yaml")


def load(folder: Path, text: str, empty: Path):
    return load_catalog([written(folder, text)], packaged=empty)


LOCAL = "source: {local: true}"


def test_the_shipped_catalog_is_valid_and_complete():
    catalog = load_catalog()
    assert catalog.warnings == ()
    assert catalog.default is not None
    assert catalog.default.name == "smollm2"
    names = {"smollm2", "qwen3", "qwen3.5", "qwen3.5-fq", "qwen3.6-fq", "qwen3.5-w4a8", "qwen3-vl", "qwen3.8-27b",
             "qwen3.8-flash-next"}  # fmt: skip
    assert names <= set(catalog.entries)
    assert [v.name for v in catalog.entries["qwen3.8-flash-next"].variants] == ["iq3_s", "iq3_xxs", "iq2_xs", "q2_0"]
    drafters = {d.name for e in catalog.entries.values() for d in e.drafters}
    assert drafters == {"mtp", "dflash", "dflash2"}


def test_every_shipped_figure_of_memory_exceeds_the_weights_that_must_be_in_it():
    table_on_disk = {"qwen4_exp": 28_800_138_432}
    for entry in load_catalog().entries.values():
        for variant in entry.variants:
            assert variant.weights_bytes > 0
            assert variant.min_memory_bytes > variant.weights_bytes - table_on_disk.get(entry.family, 0)


def test_the_default_model_has_its_hash_and_two_sources():
    entry = load_catalog().find("default")
    assert entry is not None
    variant = entry.variants[0]
    assert [s.kind for s in variant.sources] == ["huggingface", "index"]
    assert variant.files[0].size == 98362432
    assert len(variant.files[0].sha256) == 64


def test_models_without_a_certain_place_say_so():
    catalog = load_catalog()
    for name in ("qwen3.5-fq", "qwen3.6-fq", "qwen3.5-w4a8", "qwen3-vl"):
        source = catalog.entries[name].variants[0].sources[0]
        assert source.kind == "local"
        assert source.note


def test_the_packaged_copy_is_preferred_to_the_checkouts():
    assert packaged_file().name == "models.yaml"


FAULTS = [
    ("models:\n\t- name: x\n", 2, "tab in the indentation"),
    (f"models:\n  - {{name: x, {LOCAL}}}\n  - {{name: x, {LOCAL}}}\n", 3, "second entry named x"),
    (f"models:\n  - {{name: 'a:b', {LOCAL}}}\n", 2, "not a name of a model: 'a:b'"),
    ("models:\n  - {title: x}\n", 2, "without a name"),
    ("models:\n  - name: x\n    name: y\n", 3, "name is given twice"),
    (f"models:\n  - name: x\n    {LOCAL}\n    aliases: {{a: b}}\n", 4, "aliases must be text"),
    (f"models:\n  - name: x\n    {LOCAL}\n    default: maybe\n", 4, "must be true or false"),
    (f"models:\n  - name: x\n    {LOCAL}\n    variants:\n      v: {{weights: big}}\n", 5, "weights: not a size"),
    (f"models:\n  - name: x\n    {LOCAL}\n    variants: [a]\n", 4, "variants must be a mapping"),
    ("models:\n  - name: x\n    source: {repo: justname}\n", 3, "must be user/repository"),
    ("models:\n  - name: x\n    source: {hub: gitlab, repo: a/b}\n", 3, "one of huggingface, modelscope"),
    ("models:\n  - name: x\n    source: {revision: main}\n", 3, "names neither repo"),
    ("models:\n  - name: x\n    source: {url: ftp://h/x}\n", 3, "must begin with https"),
    ("models:\n  - name: x\n    source: {index: {package: p}}\n", 3, "lacks version and member"),
    (f"models:\n  - name: x\n    {LOCAL}\n    files: [{{path: a.gguf, sha256: 12}}]\n", 4, "64 hex digits"),
    (f"models:\n  - name: x\n    {LOCAL}\n    files: [{{path: ../a.gguf}}]\n", 4, "not a path inside"),
    (f"models:\n  - name: x\n    {LOCAL}\n    files: [{{size: 3}}]\n", 4, "without a path"),
    (f"models:\n  - name: x\n    {LOCAL}\n    files: [{{path: a, role: soul}}]\n", 4, "role must be one of"),
    (f"models:\n  - name: x\n    {LOCAL}\n    defaults: {{temperature: hot}}\n", 4, "must be a number"),
    (f"models:\n  - name: x\n    {LOCAL}\n    defaults: {{top_k: 1.5}}\n", 4, "whole number"),
    (f"models:\n  - name: x\n    {LOCAL}\n    defaults: {{top_p: .nan}}\n", 4, "must be"),
    ("models: {a: b}\n", 1, "models must be a list"),
    ("model: []\n", 1, "unknown key 'model'"),
    ("- a\n", 1, "must be a mapping"),
    ("models: [a\n", 2, "not valid YAML"),
    (
        f"models:\n  - {{name: x, default: true, {LOCAL}}}\n  - {{name: y, default: true, {LOCAL}}}\n",
        3,
        "second entry with",
    ),
    ("models:\n  - name: x\n    source: {local: true}\n    sources: [{local: true}]\n", 2, "both source and sources"),
]


@pytest.mark.parametrize(("text", "line", "message"), FAULTS)
def test_a_fault_names_file_and_line(tmp_path: Path, empty: Path, text: str, line: int, message: str):
    with pytest.raises(UsageError, match=message) as caught:
        load(tmp_path, text, empty)
    assert f"m.yaml, line {line}:" in caught.value.message
    assert caught.value.exit_code == 2


def test_names_and_tags_stay_text(tmp_path: Path, empty: Path):
    head = f"models:\n  - name: no\n    aliases: [on, 007]\n    {LOCAL}\n"
    text = head + "    variants: {1.0: {bpw: 4}, 2e3: {}, null: {}}\n"
    catalog = load(tmp_path, text, empty)
    entry = catalog.find("no")
    assert entry is not None
    assert entry.aliases == ("on", "007")
    assert [v.name for v in entry.variants] == ["1.0", "2e3", "null"]


def test_unknown_keys_warn_with_their_line(tmp_path: Path, empty: Path):
    catalog = load(tmp_path, f"models:\n  - name: x\n    colour: red\n    {LOCAL}\n", empty)
    assert "line 3: unknown key 'colour'" in catalog.warnings[0]


def test_a_stronger_file_changes_only_what_it_gives(tmp_path: Path):
    base = written(
        tmp_path,
        "models:\n  - name: x\n    title: One\n    source: {repo: a/b}\n    defaults: {ctx: 10, top_k: 3}\n",
        "p.yaml",
    )
    weak = written(tmp_path, "models:\n  - name: x\n    title: Two\n    defaults: {ctx: 20}\n", "weak.yaml")
    strong = written(tmp_path, "models:\n  - name: x\n    defaults: {ctx: 30}\n", "strong.yaml")
    entry = load_catalog([strong, weak], packaged=base).entries["x"]
    assert entry.title == "Two"
    assert entry.defaults == {"ctx": 30, "top_k": 3}
    assert entry.variants[0].sources[0].repo == "a/b"
    assert entry.origin == strong
    assert not entry.packaged


def test_a_users_default_replaces_the_packaged_one(tmp_path: Path):
    base = written(tmp_path, f"models:\n  - {{name: x, default: true, {LOCAL}}}\n", "p.yaml")
    mine = written(tmp_path, f"models:\n  - {{name: y, default: true, {LOCAL}}}\n", "mine.yaml")
    default = load_catalog([mine], packaged=base).default
    assert default is not None
    assert default.name == "y"


def test_a_name_of_two_models_is_refused(tmp_path: Path, empty: Path):
    with pytest.raises(UsageError, match="X is a name of both x and y"):
        load(tmp_path, f"models:\n  - {{name: x, {LOCAL}}}\n  - {{name: y, aliases: [X], {LOCAL}}}\n", empty)


def test_a_new_entry_without_a_source_is_refused(tmp_path: Path, empty: Path):
    with pytest.raises(UsageError, match="has no source"):
        load(tmp_path, "models:\n  - name: x\n", empty)


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"models:\n - name: \x01\n"])
def test_bytes_that_are_no_text_are_refused(tmp_path: Path, empty: Path, data: bytes):
    file = tmp_path / "m.yaml"
    file.write_bytes(data)
    with pytest.raises(UsageError, match="m.yaml"):
        load_catalog([file], packaged=empty)


def test_a_byte_order_mark_and_an_empty_file_are_no_faults(tmp_path: Path, empty: Path):
    marked = written(tmp_path, f"\ufeffmodels:\n  - {{name: x, {LOCAL}}}\n", "marked.yaml")
    assert load_catalog([marked, written(tmp_path, "", "none.yaml")], packaged=empty).find("x")


def test_a_missing_file_is_a_usage_error(tmp_path: Path, empty: Path):
    with pytest.raises(UsageError, match="No such file"):
        load_catalog([tmp_path / "gone.yaml"], packaged=empty)


def test_a_deeply_nested_or_circular_file_is_refused(tmp_path: Path, empty: Path):
    with pytest.raises(UsageError):
        load(tmp_path, "models: &a [*a]\n", empty)


@pytest.mark.parametrize(
    ("typed", "first"), [("smolm2", "smollm2"), ("Qwen3.5", "qwen3.5"), ("qwen3.8", "qwen3.8-27b")]
)
def test_near_names_lead_with_the_likely_one(typed: str, first: str):
    near = near_names(typed, load_catalog().names())
    assert near[0] == first
    assert len(near) <= 5


def test_nothing_is_near_to_nonsense():
    assert near_names("zzzzzz", load_catalog().names()) == []
