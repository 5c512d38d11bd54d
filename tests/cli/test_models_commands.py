"""ls, show, rm, cp on models put in place without a download."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from strata_cli import inventory
from strata_engine.registry.store import Store
from tests.support.command import call, values
from tests.support.program import environment, imports, run
from tests.support.registry import gguf_like, put_model, store_in
from tests.support.tiny_gguf import write_gguf

A, B = gguf_like(1_000_000), gguf_like(500_000, seed=2)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return values(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_in(tmp_path / "llmrun")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny-Q8_0.gguf"
    tensors = {"token_embd.weight": np.zeros((320, 32), np.float32), "output_norm.weight": np.ones(32, np.float32)}
    metadata = {"{a}.context_length": 77, "{a}.block_count": 2, "{a}.embedding_length": 32, "general.license": "mit",
                "general.name": "Tiny"}  # fmt: skip
    write_gguf(path, "llama", metadata, tensors, "Q8_0", {"tokenizer.chat_template": "{{ messages }}"})
    return path


def test_an_empty_list_says_what_to_do(env):
    done = call(["ls"], env)
    assert (done.code, done.out) == (0, "")
    assert "llmrun pull smollm2" in done.err


def test_ls_shows_downloaded_models_with_variant_size_and_fit(env, store: Store):
    put_model(store, "smollm2:q4_1", {"m.gguf": A})
    put_model(store, "hf.co/u/r:Q8_0", {"x-Q8_0.gguf": B})
    lines = call(["ls"], env).out.splitlines()
    assert lines[0].split() == ["NAME", "VARIANT", "SIZE", "QUANT", "FIT", "MODIFIED"]
    assert lines[1].split()[:5] == ["hf.co/u/r", "Q8_0", "500", "kB", "Q8_0"]
    assert lines[2].split()[:6] == ["smollm2", "q4_1", "1", "MB", "Q4_1", "yes"]


def test_ls_all_adds_the_catalog_and_says_where_from(env):
    out = call(["ls", "--all"], env).out
    assert "qwen3.8-flash-next" in out
    assert "packaged" in out


def test_show_names_aliases_as_words(env):
    aliases = next(line for line in call(["show", "smollm2"], env).out.splitlines() if line.startswith("aliases"))
    assert aliases.split() == ["aliases", "smollm,", "default"]


def test_ls_sorts_and_filters(env, store: Store):
    put_model(store, "b:x", {"m.gguf": A}, pulled_at=10)
    put_model(store, "a:x", {"m.gguf": B}, pulled_at=20)
    names = lambda *args: [line.split()[0] for line in call(["ls", *args], env).out.splitlines()[1:]]  # noqa: E731
    assert names() == ["a", "b"]
    assert names("--sort", "size") == ["b", "a"]
    assert names("--sort", "date") == ["a", "b"]
    assert names("b*") == ["b"]
    assert call(["ls", "zzz"], env).err == "no downloaded model is called zzz (ls --all)\n"
    assert call(["ls", "--all", "zzz"], env).err == "no model is called zzz\n"


def test_ls_quiet_prints_references_only(env, store: Store):
    put_model(store, "a:x", {"m.gguf": A})
    assert call(["ls", "-q"], env).out == "a:x\n"


def test_ls_json_is_one_document_with_a_schema(env, store: Store):
    put_model(store, "a:x", {"m.gguf": A})
    document = json.loads(call(["ls", "--json"], env).out)
    assert document["schema"] == "llmrun.ls.v1"
    row = document["models"][0]
    assert (row["reference"], row["size_bytes"], row["downloaded"], row["fit"]) == ("a:x", len(A), True, "yes")


def test_ls_marks_a_model_whose_file_is_gone(env, store: Store):
    made = put_model(store, "a:x", {"m.gguf": A})
    store.blob(made.files[0].sha256).unlink()
    assert "incomplete" in call(["ls"], env).out


def test_ls_shows_names_of_the_user(env, tiny: Path, tmp_path: Path):
    call(["cp", str(tiny), "mine"], env)
    out = call(["ls"], env).out
    assert f"mine -> {tiny}" in out
    tiny.unlink()
    assert "incomplete" in call(["ls"], env).out


def test_unknown_keys_of_a_catalog_are_warned_about(env, tmp_path: Path):
    file = tmp_path / "m.yaml"
    file.write_text("models:\n  - {name: x, wheels: 4, source: {local: true}}\n")
    done = call(["--models", str(file), "ls", "--all"], env)
    assert "warning:" in done.err
    assert "unknown key 'wheels'" in done.err
    assert str(file) in done.out


@pytest.mark.parametrize(("need", "word"), [(0, "?"), (5, "yes"), (50, "tight"), (500, "no")])
def test_fit_compares_with_free_and_with_all_memory(need: int, word: str):
    assert inventory.fit(need, (100, 10)) == word


def test_need_is_the_catalogs_figure_or_follows_the_size():
    assert inventory.need_of(100, 7) == 7
    assert inventory.need_of(0, 0) == 0
    assert inventory.need_of(10**9, 0) == 13 * 10**8


def test_ls_of_a_stored_model_needs_neither_torch_nor_numpy(env, store: Store, tmp_path: Path):
    put_model(store, "a:x", {"m.gguf": A})
    assert imports(["ls"], environment(tmp_path)) & {"torch", "numpy", "httpx", "rich"} == set()


def test_show_tells_the_shape_of_a_file(env, tiny: Path):
    out = call(["show", str(tiny)], env).out
    rows = dict(line.split(maxsplit=1) for line in out.splitlines() if line and not line.startswith(" "))
    assert rows["architecture"] == "llama"
    assert rows["license"] == "mit"
    assert "77" in out
    assert "10,272" in out  # 320 x 32 + 32 parameters


def test_show_json_holds_every_section(env, tiny: Path):
    document = json.loads(call(["show", str(tiny), "--json"], env).out)
    assert document["schema"] == "llmrun.show.v1"
    assert document["context_tokens"] == 77
    assert document["template"] == "{{ messages }}"
    assert document["metadata"]["general.name"] == "Tiny"
    assert document["tensor_types"] == {"Q8_0": 1, "F32": 1}


def test_show_files_lists_absolute_paths_and_hashes(env, tiny: Path):
    document = json.loads(call(["show", str(tiny), "--files", "--json"], env).out)
    assert document["files"] == [{"path": str(tiny), "name": tiny.name, "role": "weights", "size": tiny.stat().st_size,
                                  "sha256": hashlib.sha256(tiny.read_bytes()).hexdigest()}]  # fmt: skip


@pytest.mark.parametrize(("flag", "text"), [("--template", "{{ messages }}"), ("--license", "mit"),
                         ("--metadata", "general.name"), ("--tensors", "320 x 32"),
                         ("--files", "weights")])  # fmt: skip
def test_show_prints_one_section(env, tiny: Path, flag: str, text: str):
    done = call(["show", str(tiny), flag], env)
    assert done.code == 0
    assert text in done.out


def test_show_params_are_the_catalogs(env, tiny: Path):
    call(["cp", str(tiny), "qwen3.5-fq"], env)
    assert "top k" in call(["show", "qwen3.5-fq", "--params"], env).out


def test_show_of_a_model_that_is_not_here_tells_the_catalog(env):
    done = call(["show", "qwen3.8-27b"], env)
    assert done.code == 0
    assert "W4A16" in done.out
    assert "z-lab/Qwen3.8-27B-DFlash2" in done.out
    assert "llmrun pull qwen3.8-27b" in done.err
    document = json.loads(call(["show", "qwen3.8-27b", "--json"], env).out)
    assert document["downloaded"] is False
    assert len(document["variants"]) == 2


@pytest.mark.parametrize(("args", "code"), [
    (["show", "nosuch"], 3), (["show", "smollm2", "--files"], 3), (["show", "u/r"], 3), (["show", "./gone.gguf"], 3),
    (["show", "a:b:c"], 2), (["show", ""], 2), (["show"], 2), (["show", "smollm2", "--remote", "--files"], 2),
])  # fmt: skip
def test_show_of_nothing_has_its_exit_code(env, args: list[str], code: int):
    done = call(args, env)
    assert done.code == code
    assert done.err.startswith("error: ")


@pytest.mark.parametrize(("body", "word"), [
    (b"", "empty"), (b"<!DOCTYPE html><html></html>", "HTML"), (b"GGUF", ""), (b"PK\x03\x04zip", "ZIP"),
    (b"version https://git-lfs.github.com/spec/v1\nsize 1", "LFS"),
])  # fmt: skip
def test_show_of_a_damaged_file_says_what_it_is(env, tmp_path: Path, body: bytes, word: str):
    file = tmp_path / "x.gguf"
    file.write_bytes(body)
    done = call(["show", str(file)], env)
    assert done.code == 6
    assert word in done.err


def test_an_error_is_one_json_document_too(env):
    document = json.loads(call(["show", "smolm2", "--json"], env).out)
    assert document["error"]["exit_code"] == 3
    assert "smollm2" in document["error"]["hint"]


def test_rm_frees_what_no_other_model_uses(env, store: Store):
    put_model(store, "one:x", {"a.gguf": A})
    put_model(store, "two:x", {"a.gguf": A, "b.gguf": B})
    done = call(["rm", "two", "-y"], env)
    assert "500 kB freed" in done.out
    assert "1 file kept" in done.err
    assert [m.reference for m in store.manifests()] == ["one:x"]


def test_rm_takes_one_variant_or_all(env, store: Store):
    for variant in "xyz":
        put_model(store, f"one:{variant}", {"a.gguf": A})
    call(["rm", "one:y", "-y"], env)
    assert [m.variant for m in store.manifests()] == ["x", "z"]
    call(["rm", "one", "-y"], env)
    assert store.manifests() == []


def test_rm_dry_run_says_and_keeps(env, store: Store):
    put_model(store, "one:x", {"a.gguf": A})
    assert "would be removed: 1 MB" in call(["rm", "one", "--dry-run"], env).out
    assert len(store.manifests()) == 1


def test_rm_of_a_name_leaves_the_files(env, tiny: Path):
    call(["cp", str(tiny), "mine"], env)
    assert call(["rm", "mine", "-y"], env).code == 0
    assert tiny.exists()
    assert call(["show", "mine"], env).code == 3


@pytest.mark.parametrize(
    ("args", "code"), [(["rm"], 2), (["rm", "./x.gguf"], 2), (["rm", "nosuch"], 3), (["rm", "smollm2"], 3)]
)
def test_rm_of_what_is_not_there_has_its_exit_code(env, args: list[str], code: int):
    assert call(args, env).code == code


def test_rm_unused_takes_leftovers(env, store: Store):
    put_model(store, "one:x", {"a.gguf": A})
    next(store.paths.manifests.glob("*.json")).unlink()
    assert "1 MB freed" in call(["rm", "--unused", "-y"], env).out
    assert list(store.blobs()) == []


def test_rm_tells_near_names_of_what_is_here(env, store: Store):
    put_model(store, "tiny:x", {"a.gguf": A})
    assert "tiny" in call(["rm", "tinny"], env).err


def test_cp_and_alias_name_a_model(env, store: Store):
    put_model(store, "one:x", {"a.gguf": A})
    assert call(["cp", "one", "eins"], env).out == "eins -> one\n"
    assert call(["alias", "eins", "uno"], env).code == 0
    assert store.aliases() == {"eins": "one", "uno": "eins"}
    assert call(["cp", "one:x", "eins"], env).out == "eins -> one:x (was one)\n"


def test_cp_of_a_relative_path_keeps_its_place(env, tiny: Path, store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tiny.parent)
    call(["cp", f"./{tiny.name}", "mine"], env)
    assert store.aliases() == {"mine": str(tiny)}


def test_cp_over_a_catalog_name_says_so(env, tiny: Path):
    assert "name of the catalog too" in call(["cp", str(tiny), "smollm2"], env).err
    assert call(["cp", str(tiny), "qwen3.5-fq"], env).err == ""


@pytest.mark.parametrize("name", ["a/b", "a:b", "./a", "", "a b", "x.gguf"])
def test_cp_to_something_that_is_no_name_is_refused(env, tiny: Path, name: str):
    assert call(["cp", str(tiny), name], env).code == 2


def test_cp_of_nothing_is_not_found(env):
    assert call(["cp", "nosuch", "x"], env).code == 3
    assert call(["cp", "qwen3.5-fq", "x"], env).code == 3


def test_changes_refresh_the_names_for_completion(env, tiny: Path, tmp_path: Path):
    call(["cp", str(tiny), "mine"], env)
    assert "mine" in json.loads((tmp_path / "llmrun" / "cache" / "completion.json").read_text())["local"]
    call(["rm", "mine", "-y"], env)
    assert "mine" not in json.loads((tmp_path / "llmrun" / "cache" / "completion.json").read_text())["local"]


def test_a_malformed_catalog_names_its_line_and_no_traceback(tmp_path: Path):
    (tmp_path / "m.yaml").write_text("models:\n\t- name: x\n")
    done = run(["--models", "m.yaml", "ls"], environment(tmp_path), cwd=tmp_path)
    assert done.code == 2
    assert "line 2" in done.err
    assert "Traceback" not in done.err


def test_names_with_control_characters_do_not_reach_the_terminal(env, store: Store):
    put_model(store, "x\x1b[31m:y", {"a.gguf": A})
    assert "\x1b" not in call(["ls"], env).out
