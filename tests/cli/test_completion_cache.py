"""The names that Tab offers follow what is on the disk."""

from __future__ import annotations

import json

import pytest

from strata_cli.app import App
from strata_cli.completion import Tables, complete
from strata_cli.completion_cache import refresh
from strata_cli.globals import GlobalFlags
from strata_cli.output import Output
from strata_engine.env import Env
from strata_engine.registry.manifest import Manifest, ManifestFile


@pytest.fixture
def app(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMRUN_HOME", str(tmp_path))
    env = Env({"LLMRUN_HOME": str(tmp_path)})
    return App(GlobalFlags(), env, env.paths(), Output())


def pulled(app: App, reference: str) -> None:
    base, _, variant = reference.rpartition(":")
    sha256 = "a" * 64
    app.paths.blobs.mkdir(parents=True, exist_ok=True)
    app.store.blob(sha256).write_bytes(b"x")
    file = ManifestFile("m.gguf", "weights", 1, sha256)
    assert app.store.write(Manifest(reference, base, variant, base, base, (file,)))


def offered(*words: str) -> list[str]:
    return [value for value, _ in complete("zsh", ["llmrun", *words], Tables.load())[0]]


def test_what_was_pulled_is_offered_with_its_variant(app):
    pulled(app, "hf.co/user/repo:Q4_K_M")
    refresh(app)
    assert offered("rm", "hf") == ["hf.co/user/repo"]
    assert offered("rm", "hf.co/user/repo:") == ["hf.co/user/repo:Q4_K_M"]


def test_aliases_are_offered(app):
    app.store.set_alias("my-name", "smollm2")
    refresh(app)
    assert offered("chat", "my") == ["my-name"]


def test_what_is_gone_is_no_longer_offered(app):
    pulled(app, "hf.co/user/repo:Q4_K_M")
    refresh(app)
    [manifest] = app.store.manifests()
    app.store.remove(manifest)
    refresh(app)
    assert offered("rm", "") == []


def test_entries_of_the_users_own_catalog_are_offered(app):
    file = app.paths.config / "models.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("models:\n  - name: own-model\n    source: {local: true}\n    variants: {a: {}, b: {}}\n", "utf-8")
    refresh(app)
    assert offered("chat", "own-model:") == ["own-model:a", "own-model:b"]


def test_a_cache_that_cannot_be_written_is_no_error(app):
    app.paths.cache.parent.mkdir(parents=True, exist_ok=True)
    app.paths.cache.write_text("a file in the way", encoding="utf-8")
    refresh(app)


def test_a_broken_catalog_is_no_error_and_leaves_the_old_names(app):
    refresh(app)
    before = app.paths.completion.read_text(encoding="utf-8")
    file = app.paths.config / "models.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("models: [", encoding="utf-8")
    refresh(App(app.flags, app.env, app.paths, app.output))
    assert app.paths.completion.read_text(encoding="utf-8") == before
    assert json.loads(before)["schema"] == 1
