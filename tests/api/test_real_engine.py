"""The server over the real engine with tiny random models: what the fake cannot show."""

from __future__ import annotations

import threading

import openai
import pytest

from strata_cli.repl.conversation import Conversation
from strata_cli.server.names import Served
from strata_engine.config import EngineConfig, SamplingParams, SpecConfig
from strata_engine.paths import Paths
from strata_engine.registry.catalog import load_catalog
from strata_engine.registry.store import Store
from strata_engine.runtime.service import LocalService
from tests.support.engines import ReferenceBackend
from tests.support.live_server import live_server
from tests.support.sse_reader import read_stream
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_models import gguf_metadata, gguf_tensors, save_tiny, tiny_model

CHAT, RAW = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "the rain in"}]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    base = tmp_path_factory.mktemp("served")
    model = tiny_model("llama", vocab_size=320, max_position_embeddings=512)
    write_gguf(base / "words.gguf", "llama", gguf_metadata(model), gguf_tensors(model, "llama"), tokenizer=True)
    save_tiny(tiny_model("qwen3"), base / "ids")
    paths = Paths(*(base / name for name in ("config", "data", "models", "state", "cache")))
    config = EngineConfig(kv_type="f32", max_sequences=4, batch_rows=64, max_queue=64)
    with LocalService(load_catalog(), Store(paths), config, lambda device: ReferenceBackend()) as opened:
        opened.load(str(base / "words.gguf"))
        opened.load(str(base / "ids"))
        yield opened


@pytest.fixture(scope="module")
def live(service):
    served = [Served(model.reference, (model.name,)) for model in service.loaded()]
    with live_server(service, served=served) as found:
        yield found


def _chat(**more):
    return {"model": "words", "messages": HI, "max_tokens": 24, "ignore_eos": True, **more}


@pytest.mark.parametrize("more", [
    {"temperature": 0}, {"temperature": 1, "seed": 5}, {"temperature": 1, "seed": 5, "n": 3},
    {"temperature": 0, "logprobs": True, "top_logprobs": 3}, {"temperature": 2, "seed": 1, "top_k": 0, "top_p": 1},
])  # fmt: skip
def test_a_stream_equals_the_plain_reply(live, more):
    plain = live.http.post(CHAT, json=_chat(return_token_ids=True, **more)).json()
    streamed = read_stream(live.http, CHAT, _chat(return_token_ids=True, **more))
    assert streamed.done
    for choice in plain["choices"]:
        index = choice["index"]
        assert streamed.joined("content", index) == choice["message"]["content"]
        assert [n for c in streamed.choices(index) for n in c["token_ids"]] == choice["token_ids"]
        assert len(choice["token_ids"]) == 24
        assert streamed.reason(index) == choice["finish_reason"] == "length"


def test_the_same_seed_gives_the_same_text_alone_and_in_company(live):
    body = _chat(temperature=1, seed=3, return_token_ids=True)
    alone = live.http.post(CHAT, json=body).json()["choices"][0]["token_ids"]
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: found.append(live.http.post(CHAT, json=body).json()["choices"][0]["token_ids"]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 4


def test_a_bias_forces_a_token(live):
    reply = live.http.post(CHAT, json=_chat(logit_bias={"70": 100}, return_token_ids=True, temperature=1)).json()
    assert reply["choices"][0]["token_ids"] == [70] * 24


def test_logprobs_are_sorted_and_hold_the_chosen_token(live):
    body = _chat(logprobs=True, top_logprobs=5, temperature=0, return_token_ids=True)
    entries = live.http.post(CHAT, json=body).json()["choices"][0]["logprobs"]["content"]
    assert len(entries) == 24
    for entry in entries:
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert (entry["id"], entry["logprob"]) == (entry["top_logprobs"][0]["id"], values[0])
        assert all(value <= 0 for value in values)


def test_the_context_ends_an_answer_and_refuses_a_prompt(live):
    full = live.http.post(
        RAW, json={"model": "ids", "prompt": [5] * 250, "max_tokens": 1000, "ignore_eos": True}
    ).json()
    assert full["choices"][0]["finish_reason"] == "length"
    assert full["usage"]["total_tokens"] == 256
    refused = live.http.post(RAW, json={"model": "ids", "prompt": [5] * 300})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["n_prompt_tokens"], error["n_ctx"]) == ("context_length_exceeded", 300, 256)


def test_a_checkpoint_without_a_tokenizer_takes_token_ids(live):
    body = {"model": "ids", "prompt": [5, 6, 7], "logprobs": 2, "max_tokens": 4, "return_token_ids": True,
            "temperature": 0, "ignore_eos": True}  # fmt: skip
    choice = live.http.post(RAW, json=body).json()["choices"][0]
    assert choice["text"] == ""
    assert choice["logprobs"]["tokens"] == [f"token_id:{number}" for number in choice["token_ids"]]
    assert len(choice["token_ids"]) == 4
    assert all(key.startswith("token_id:") for top in choice["logprobs"]["top_logprobs"] for key in top)
    assert live.http.post(CHAT, json={"model": "ids", "messages": HI}).status_code == 400
    assert live.http.post(RAW, json={"model": "ids", "prompt": "text"}).status_code == 400


def test_a_second_turn_reads_only_what_is_new_and_says_so(live):
    talk = Conversation("words", SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
    question = "the rain in spain falls mainly in the plain " * 3
    known: list[int] = []
    read: list[int] = []
    for _ in range(2):
        messages = [{"role": m.role, "content": m.text} for m in talk.request(question).messages]
        before = _metric(live, "prefix_cache_hits_total")
        reply = live.http.post(CHAT, json=_chat(messages=messages, temperature=0, max_tokens=8)).json()
        known.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert reply["timings"]["cache_n"] == known[-1] == _metric(live, "prefix_cache_hits_total") - before
        assert reply["timings"]["prompt_n"] == reply["usage"]["prompt_tokens"] - known[-1]
        talk.add(question, reply["choices"][0]["message"]["content"], "", False, [])
        read.append(reply["usage"]["prompt_tokens"])
    assert known[0] == 0 and read[0] - 64 <= known[1] < read[1]
    assert _metric(live, "prefix_cache_queries_total") >= known[1]


def _metric(live, name: str) -> float:
    lines = live.http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"llmrun:{name}"))


def test_hanging_up_frees_every_page(live, service):
    body = _chat(max_tokens=480)
    for _ in range(20):
        with live.http.stream("POST", CHAT, json={**body, "stream": True}) as reply:
            next(reply.iter_lines())
    for _ in range(2000):
        numbers = service.load_numbers("words")
        if (numbers.running, numbers.waiting, numbers.kv_pages_used) == (0, 0, 0):
            break
        live.http.get("/health")
    assert (numbers.running, numbers.waiting, numbers.kv_pages_used) == (0, 0, 0)
    assert live.http.post(CHAT, json=_chat()).status_code == 200


def test_the_official_client_streams_sixteen_answers_at_once(live):
    found: list[str] = []

    def ask(client: openai.OpenAI, number: int) -> None:
        stream = client.chat.completions.create(
            model="words", messages=HI, max_tokens=12, seed=number, stream=True, extra_body={"ignore_eos": True}
        )
        found.append("".join(c.choices[0].delta.content or "" for c in stream if c.choices))

    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        threads = [threading.Thread(target=ask, args=(client, number)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 16


def test_a_speculating_server_gives_the_same_answer_and_counts_its_drafts(tmp_path, service, live):
    body = _chat(temperature=0, max_tokens=48)
    plain = live.http.post(CHAT, json=body).json()["choices"][0]["message"]
    (words,) = [model for model in service.loaded() if model.name == "words"]
    paths = Paths(*(tmp_path / name for name in ("config", "data", "models", "state", "cache")))
    spec = SpecConfig("ngram", n_max=3, strict=True, adaptive=False)
    config = EngineConfig(kv_type="f32", max_sequences=4, batch_rows=64, spec=spec)
    with LocalService(load_catalog(), Store(paths), config, lambda device: ReferenceBackend()) as opened:
        model = opened.load(words.reference)
        with live_server(opened, served=[Served(model.reference, (model.name,))]) as speculating:
            reply = speculating.http.post(CHAT, json=body).json()
            off = speculating.http.post(CHAT, json={**body, "speculate": False}).json()
            lines = speculating.http.get("/metrics").text.splitlines()
            props = speculating.http.get("/props").json()
    assert [r["choices"][0]["message"] for r in (reply, off)] == [plain, plain]
    timings = reply["timings"]
    assert timings["draft_n"] >= timings["draft_n_accepted"] and timings["draft_rounds"] > 0
    assert timings["draft_steps"] + timings["draft_n_accepted"] == 47  # the prompt's own step gives the first token
    assert off["timings"]["draft_n"] == 0
    assert f'llmrun:spec_decode_num_draft_tokens_total{{model="words"}} {float(timings["draft_n"])}' in lines
    assert (props["speculation"]["n_max"], list(props["speculation"]["drafters"])) == (3, ["ngram"])
