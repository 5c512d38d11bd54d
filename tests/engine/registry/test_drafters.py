"""Which drafter goes with a model: named, paired by the catalog, missing, or none that could."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_engine.config import EngineConfig, SpecConfig
from strata_engine.errors import NotFound, UsageError
from strata_engine.registry.catalog import Catalog
from strata_engine.registry.drafters import with_drafter
from strata_engine.registry.files import ModelFiles
from strata_engine.registry.store import Store
from tests.support.registry import catalog_of, gguf_like, put_model, store_in

BODY = gguf_like(2000)
TEXT = """models:
  - name: big
    source: {repo: u/r}
    variants: {a: {files: [m.gguf]}, b: {files: [n.gguf]}}
    drafters:
      mtp: {built_in: true, n_max: 3}
      dflash2: {source: {repo: d/d}, n_max: 7}
      eagle3: {source: {repo: e/e}, variants: [b]}
"""
BIG = ModelFiles("big", "big:a", "u/r", (), variant="a")
OTHER = ModelFiles("other", "./other.gguf", "./other.gguf", ())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_in(tmp_path / "home")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return catalog_of(tmp_path / "catalog", TEXT)


def config(method: str, **more) -> EngineConfig:
    return EngineConfig(spec=SpecConfig(method, **more))


def pulled(store: Store) -> Path:
    manifest = put_model(store, "big+dflash2:default", {"d.gguf": BODY})
    return store.local_files(manifest)[0].path


@pytest.mark.parametrize("method", ["none", "mtp", "ngram", "suffix"])
def test_methods_without_files_are_left_alone(method, store, catalog):
    assert with_drafter(BIG, config(method), catalog, store) == (BIG, config(method))


def test_the_catalog_pairs_model_and_drafter_and_knows_the_depth(store, catalog):
    path = pulled(store)
    for method in ("dflash", "auto"):
        files, found = with_drafter(BIG, config(method), catalog, store)
        assert files == BIG
        assert found.spec == SpecConfig(method, draft=str(path), n_max=7)
    assert with_drafter(BIG, config("dflash", n_max=2), catalog, store)[1].spec.n_max == 2


def test_a_paired_drafter_that_is_missing_is_said_with_the_command_that_fetches_it(store, catalog):
    files, found = with_drafter(BIG, config("dflash"), catalog, store)
    assert found.spec.method == "none"
    assert "drafter dflash2 is not on this disk" in files.notes[0]
    assert "llmrun pull big --draft" in files.notes[0]
    with pytest.raises(NotFound, match="not on this disk") as caught:
        with_drafter(BIG, config("dflash", strict=True), catalog, store)
    assert caught.value.hint == "llmrun pull big --draft"


def test_auto_goes_on_without_a_drafter_that_is_missing(store, catalog):
    assert with_drafter(BIG, config("auto"), catalog, store) == (BIG, config("auto"))
    assert with_drafter(OTHER, config("auto"), catalog, store) == (OTHER, config("auto"))


@pytest.mark.parametrize(("files", "method"), [(OTHER, "dflash"), (BIG, "draft"), (BIG, "eagle3")])
def test_a_method_without_any_known_drafter_is_refused(files, method, store, catalog):
    with pytest.raises(NotFound, match=f"no drafter for {method} is known") as caught:
        with_drafter(files, config(method), catalog, store)
    assert "--draft" in caught.value.hint


def test_a_named_drafter_wins_and_may_be_a_path_or_a_name(store, catalog, tmp_path):
    pulled(store)
    own = tmp_path / "own.gguf"
    own.write_bytes(BODY)
    assert with_drafter(BIG, config("dflash", draft=str(own)), catalog, store)[1].spec.draft == str(own)
    put_model(store, "spare", {"s.gguf": BODY})
    assert with_drafter(OTHER, config("draft", draft="spare"), catalog, store)[1].spec.draft
    with pytest.raises(NotFound):
        with_drafter(BIG, config("draft", draft="no-such-model"), catalog, store)


def test_a_drafter_for_a_method_that_takes_none_is_refused(store, catalog):
    with pytest.raises(UsageError, match="mtp takes no drafter of its own, x.gguf"):
        with_drafter(BIG, config("mtp", draft="x.gguf"), catalog, store)


def test_a_drafter_without_speculation_is_not_looked_for(store, catalog):
    assert with_drafter(BIG, config("none", draft="no-such-model"), catalog, store)[1].spec == SpecConfig()
