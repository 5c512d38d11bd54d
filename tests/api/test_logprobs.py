"""Log probabilities in both families' shapes."""

from __future__ import annotations

import math

import pytest

from strata_cli.server.openai.labels import Labels, finite
from strata_engine.events import Token
from tests.support.fake_service import END, ByteTokenizer, FakeService
from tests.support.live_server import live_server
from tests.support.sse_reader import read_stream

TEXT = "日本語 😸"


@pytest.fixture(scope="module")
def live():
    service = FakeService()
    with live_server(service) as found:
        yield found
    service.close()


def _chat(**more):
    return {"messages": [{"role": "user", "content": f"Repeat: {TEXT}"}], "logprobs": True, "top_logprobs": 2, **more}


def test_the_bytes_of_all_entries_are_the_text(live):
    choice = live.http.post("/v1/chat/completions", json=_chat()).json()["choices"][0]
    entries = choice["logprobs"]["content"]
    assert bytes(b for entry in entries for b in entry["bytes"]).decode() == choice["message"]["content"] == TEXT
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert all(entry["top_logprobs"][0]["logprob"] == entry["logprob"] == -0.5 for entry in entries)


def test_streamed_entries_equal_the_plain_ones(live):
    plain = live.http.post("/v1/chat/completions", json=_chat()).json()["choices"][0]["logprobs"]["content"]
    streamed = read_stream(live.http, "/v1/chat/completions", _chat())
    assert [e for c in streamed.choices() for e in (c["logprobs"] or {"content": []})["content"]] == plain


def test_with_token_ids_every_id_has_an_entry(live):
    choice = live.http.post("/v1/chat/completions", json=_chat(return_token_ids=True)).json()["choices"][0]
    assert [entry["id"] for entry in choice["logprobs"]["content"]] == choice["token_ids"]
    assert choice["token_ids"][-1] == END
    assert choice["logprobs"]["content"][-1]["bytes"] is None


def test_completions_give_parallel_lists_with_offsets(live):
    body = {"prompt": "Say: né!", "logprobs": 1}
    choice = live.http.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["text"] == "né!"
    assert choice["logprobs"]["tokens"] == ["n", "bytes:\\xc3", "bytes:\\xa9", "!"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2]
    assert choice["logprobs"]["token_logprobs"] == [-0.5] * 4
    assert choice["logprobs"]["top_logprobs"][0] == {"n": -0.5}


def test_completions_without_the_wish_have_none(live):
    assert live.http.post("/v1/completions", json={"prompt": "Say: x"}).json()["choices"][0]["logprobs"] is None


def test_a_model_without_a_tokenizer_takes_ids_and_names_them_by_number():
    service = FakeService(tokenizer=False)
    with live_server(service) as live:
        body = {"prompt": [5, 6], "logprobs": 2, "return_token_ids": True, "max_tokens": 3}
        choice = live.http.post("/v1/completions", json=body).json()["choices"][0]
        assert choice["token_ids"] == list(b"tok")
        assert choice["logprobs"]["tokens"] == ["token_id:116", "token_id:111", "token_id:107"]
        assert choice["logprobs"]["top_logprobs"][0] == {"token_id:116": -0.5, "token_id:117": -1.5}
        streamed = read_stream(live.http, "/v1/completions", body)
        assert [c["token_ids"] for c in streamed.choices()] == [[116], [111], [107], []]
        refused = live.http.post("/v1/chat/completions", json=_chat())
        assert refused.status_code == 400
        assert live.http.post("/tokenize", json={"content": "x"}).json()["error"]["code"] == "no_tokenizer"
    service.close()


def test_infinities_never_reach_json():
    assert finite(-math.inf) == finite(None) == finite(math.nan) == -9999.0
    entry = Labels(ByteTokenizer()).entry(Token(65, -math.inf, ((66, -math.inf),)))
    assert entry["top_logprobs"][0]["logprob"] == -9999.0
