"""Which model a name means, and what the model routes say."""

from __future__ import annotations

import dataclasses

import pytest

from strata_cli.server.names import Served
from tests.support.fake_service import FakeService
from tests.support.live_server import live_server

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Say: hi"}]}


@pytest.fixture
def service():
    made = FakeService(names=("one", "two"))
    yield made
    made.close()


ONE, TWO = Served("one", ("nick", "one")), Served("two", ("two",))


@pytest.mark.parametrize(("name", "status"), [
    ("nick", 200), ("one", 200), ("nick:latest", 200), ("", 200), (None, 200), ("NICK", 404), ("no-such", 404),
    ("nick:other", 404), ("../etc/passwd", 404), ("x" * 5000, 404),
])  # fmt: skip
def test_names_of_a_single_model(service, name, status):
    with live_server(service, served=[ONE]) as live:
        reply = live.http.post(CHAT, json={**HI, "model": name})
        assert reply.status_code == status
        if status == 200:
            assert reply.json()["model"] == "nick"
            assert reply.headers["x-llmrun-model"] == "nick"
        else:
            assert reply.json()["error"]["models"] == ["nick"]
            assert reply.json()["error"]["param"] == "model"


def test_of_two_models_one_must_be_named(service):
    with live_server(service, served=[ONE, TWO]) as live:
        assert live.http.post(CHAT, json={**HI, "model": "two"}).json()["model"] == "two"
        reply = live.http.post(CHAT, json=HI)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")


def test_a_loaded_model_answers_to_its_full_reference_too(service):
    service.load("one")
    service.models["one"] = dataclasses.replace(service.models["one"], reference="one:q4_1")
    with live_server(service, served=[ONE]) as live:
        assert live.http.post(CHAT, json={**HI, "model": "nick"}).status_code == 200
        assert live.http.post(CHAT, json={**HI, "model": "one:q4_1"}).json()["model"] == "nick"
        assert live.http.post("/api/llmrun/v1/unload", json={"model": "one:q4_1"}).json()["models"] == ["nick"]


def test_any_name_means_the_model_when_that_is_wished(service):
    with live_server(service, served=[ONE], any_model=True) as live:
        assert live.http.post(CHAT, json={**HI, "model": "gpt-4"}).json()["model"] == "nick"


def test_models_say_what_they_are_once_loaded(service):
    with live_server(service, served=[ONE, TWO]) as live:
        before = live.http.get("/v1/models").json()
        assert [(m["id"], m["status"]) for m in before["data"]] == [("nick", "unloaded"), ("two", "unloaded")]
        live.http.post(CHAT, json={**HI, "model": "nick"})
        one = live.http.get("/v1/models/nick").json()
        assert (one["status"], one["root"], one["context_length"]) == ("loaded", "user/one", 512)
        assert one["capabilities"] == ["completion", "chat"]
        assert live.http.get("/models/two").json()["status"] == "unloaded"
        assert live.http.get("/v1/models/a/b").status_code == 404


def test_downloaded_models_are_found_when_none_was_named(service):
    with live_server(service, served=[ONE], found=lambda: [TWO]) as live:
        assert [m["id"] for m in live.http.get("/v1/models").json()["data"]] == ["nick", "two"]
        assert live.http.post(CHAT, json={**HI, "model": "two"}).status_code == 200


def test_load_and_unload_routes(service):
    with live_server(service, served=[ONE, TWO]) as live:
        loaded = live.http.post("/api/llmrun/v1/load", json={"model": "two"}).json()["model"]
        assert (loaded["name"], loaded["load"]["running"]) == ("two", 0)
        status = live.http.get("/api/llmrun/v1/status").json()
        assert [m["name"] for m in status["models"]] == ["two"]
        assert status["available"] == ["nick"]
        freed = live.http.post("/api/llmrun/v1/unload", json={"all": True}).json()
        assert freed == {"freed_bytes": 4096, "models": ["two"]}
        again = live.http.post("/api/llmrun/v1/unload", json={"model": "two"})
        assert (again.status_code, again.json()["error"]["message"]) == (404, "the model two is not loaded")
        assert live.http.post("/api/llmrun/v1/unload", json={}).status_code == 400
        assert live.http.post("/api/llmrun/v1/load", json={"model": "no-such"}).status_code == 404
