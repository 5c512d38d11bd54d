"""Several engines by name: finding, loading once, unloading, closing. Real files, a real store, plain torch ops."""

from __future__ import annotations

import threading

import pytest

from strata_engine.config import EngineConfig, SamplingParams
from strata_engine.errors import NotFound
from strata_engine.paths import Paths
from strata_engine.registry.catalog import load_catalog
from strata_engine.registry.store import Store
from strata_engine.runtime.service import LocalService
from tests.support.engines import ReferenceBackend, finish_of, ids_of, ids_request, model_files

CONFIG = EngineConfig(context_tokens=64, kv_type="f32", max_sequences=2, batch_rows=32)
SHORT = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=4)


@pytest.fixture
def service(tmp_path):
    paths = Paths(*(tmp_path / name for name in ("config", "data", "models", "state", "cache")))
    with LocalService(load_catalog(), Store(paths), CONFIG, lambda device: ReferenceBackend()) as opened:
        yield opened


def test_a_directory_is_loaded_by_its_path(service, llama):
    model = service.load(str(llama))
    assert (model.name, model.architecture, model.quant, model.vocab_size) == ("llama", "llama", "F32", 128)
    assert (model.context_tokens, model.train_context_tokens, model.max_sequences) == (64, 256, 2)
    assert model.capabilities == ("completion",)
    assert model.size_bytes > model.parameters * 4


def test_loading_twice_gives_the_same_engine_by_path_or_name(service, llama):
    first = service.load(str(llama))
    assert service.load(str(llama)) is first
    assert service.load("LLAMA") is first
    assert service.load("") is first
    assert len(service.loaded()) == 1


def test_two_threads_load_one_model_once(service, llama):
    got = []
    threads = [threading.Thread(target=lambda: got.append(service.load(str(llama)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 4 and len({id(m) for m in got}) == 1


def test_two_models_answer_side_by_side(service, checkpoints):
    for family in ("llama", "qwen3"):
        service.load(str(checkpoints[family]))
    streams = [service.stream(name, ids_request(5, 6, 7), SHORT) for name in ("llama", "qwen3", "llama")]
    first, other, again = (ids_of(list(s)) for s in streams)
    assert first == again != other


def test_with_two_models_a_name_is_needed(service, checkpoints):
    service.load(str(checkpoints["llama"])), service.load(str(checkpoints["qwen3"]))
    with pytest.raises(NotFound) as caught:
        service.stream("", ids_request(1), SHORT)
    assert "llama" in caught.value.hint and "qwen3" in caught.value.hint


def test_a_model_that_is_not_on_the_disk_names_the_pull_command(service):
    with pytest.raises(NotFound) as caught:
        service.load("smollm2")
    assert "llmrun pull smollm2" in caught.value.hint


def test_a_name_nobody_knows_gives_near_names(service):
    with pytest.raises(NotFound) as caught:
        service.load("smollm22")
    assert "smollm2" in caught.value.message + caught.value.hint


def test_a_path_that_does_not_exist_is_not_found(service, tmp_path):
    with pytest.raises(NotFound):
        service.load(str(tmp_path / "nothing.gguf"))


def test_unloading_lets_sequences_finish_and_frees_the_model(service, llama):
    service.load(str(llama))
    stream = service.stream("llama", ids_request(5, 6, 7), SHORT)
    assert service.unload("llama") > 0
    assert finish_of(list(stream)).reason == "length"
    assert service.loaded() == []
    with pytest.raises(NotFound):
        service.stream("llama", ids_request(1), SHORT)


def test_unloading_without_time_cancels(service, llama):
    service.load(str(llama))
    stream = service.stream("llama", ids_request(5), SamplingParams(temperature=0.0, ignore_eos=True))
    service.unload("llama", timeout_s=0.0)
    assert finish_of(list(stream)).reason in ("cancelled", "length")


def test_numbers_report_and_text_of_a_loaded_model(service, llama):
    service.load(str(llama))
    list(service.stream("llama", ids_request(5, 6, 7), SHORT))
    numbers = service.load_numbers("llama")
    assert (numbers.running, numbers.waiting, numbers.kv_pages_used) == (0, 0, 0)
    assert (numbers.prompt_tokens_total, numbers.generation_tokens_total) == (3, 4)
    assert numbers.prompt_s_total > 0 and numbers.decode_s_total > 0
    assert service.report("llama").choices
    assert service.text("llama").tokenizer is None


def test_catalog_defaults_reach_the_loaded_model(service, llama):
    files = model_files(llama, defaults={"ctx": 48, "temperature": 0.25, "stop": ["END"]})
    model = service.load_files(files, EngineConfig(kv_type="f32"))
    assert (model.context_tokens, model.defaults.temperature, model.defaults.stop) == (48, 0.25, ("END",))


def test_closing_the_service_ends_every_stream(service, llama):
    service.load(str(llama))
    streams = [service.stream("llama", ids_request(5), SamplingParams(ignore_eos=True)) for _ in range(4)]
    service.close()
    assert all(finish_of(list(s)).reason in ("cancelled", "length") for s in streams)
