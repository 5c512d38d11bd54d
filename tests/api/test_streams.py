"""The shape of event streams: what clients and benchmarks depend on."""

from __future__ import annotations

import json
import threading

from strata_cli.server.options import ServerOptions
from strata_engine.errors import DeviceError
from tests.support.fake_service import WORD, FakeService, Fault, endless, say
from tests.support.live_server import live_server
from tests.support.sse_reader import read_stream

CHAT = "/v1/chat/completions"


def chat(text: str, **more):
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **more}


def test_all_chunks_share_id_created_and_model_and_only_the_last_has_a_reason(live):
    streamed = read_stream(live.http, CHAT, chat("Say: hello"))
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in streamed.chunks}) == 1
    reasons = [choice["finish_reason"] for choice in streamed.choices()]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert streamed.choices()[-1]["delta"] == {}


def test_role_comes_in_the_same_write_as_the_first_token(live, service):
    service.gate.clear()
    with live.http.stream("POST", CHAT, json=chat("Say: hello", stream=True)) as reply:
        pieces = reply.iter_raw()
        threading.Timer(0.2, service.open).start()
        first = next(piece for piece in pieces if piece.startswith(b"data"))
    events = [json.loads(line[6:]) for line in first.decode().split("\n\n") if line.startswith("data: {")]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[1]["choices"][0]["delta"]["content"] == "h"


def test_token_ids_are_on_every_chunk_and_nothing_is_lost(live, service):
    service.script = lambda request, params: [256, *"é😸".encode(), 256, ord("x"), 256]
    body = chat("x", return_token_ids=True, ignore_eos=True, max_tokens=10)
    streamed = read_stream(live.http, CHAT, body)
    with_text = [c for c in streamed.choices() if c["delta"].get("content")]
    assert all(isinstance(c["token_ids"], list) for c in streamed.choices())
    assert with_text[0]["token_ids"] == [256, 0xC3, 0xA9]
    ids = [number for c in streamed.choices() for number in c["token_ids"]]
    assert len(ids) == 10
    plain = live.http.post(CHAT, json=body).json()["choices"][0]
    assert plain["token_ids"] == ids


def test_timings_and_usage_come_with_the_end(live):
    streamed = read_stream(live.http, CHAT, chat("Say: hello", stream_options={"include_usage": True}))
    timings = streamed.chunks[-2]["timings"]
    assert timings["predicted_n"] == 6
    assert timings["prompt_n"] == streamed.chunks[-1]["usage"]["prompt_tokens"] > 6
    assert all("timings" not in chunk for chunk in streamed.chunks[:-2])


def test_several_choices_are_streamed_with_their_own_role_and_reason(live):
    streamed = read_stream(live.http, CHAT, chat("Say: hello", n=3, stream_options={"include_usage": True}))
    for index in range(3):
        assert streamed.joined("role", index) == "assistant"
        assert streamed.joined("content", index) == "hello"
        assert streamed.reason(index) == "stop"
    assert streamed.chunks[-1]["usage"]["completion_tokens"] == 18


def test_choices_get_consecutive_seeds(live, service):
    live.http.post(CHAT, json=chat("x", n=3, seed=7))
    assert [params.seed for params in service.params] == [7, 8, 9]


def test_thinking_goes_out_under_both_names(live, service):
    service.script = lambda request, params: say("<think>plan</think>\n\ndone")
    body = chat("x", reasoning_effort="high")
    streamed = read_stream(live.http, CHAT, body)
    assert streamed.joined("reasoning") == streamed.joined("reasoning_content") == "plan"
    assert streamed.text == "done"
    message = live.http.post(CHAT, json=body).json()["choices"][0]["message"]
    assert (message["content"], message["reasoning"], message["reasoning_content"]) == ("done", "plan", "plan")


def test_an_error_in_the_middle_is_the_last_event_and_there_is_no_done(live, service):
    service.script = lambda request, params: [*b"hello", Fault(DeviceError("the device went away"))]
    streamed = read_stream(live.http, CHAT, chat("x"))
    assert streamed.text == "hello"
    assert streamed.chunks[-1]["error"]["message"] == "the device went away"
    assert streamed.chunks[-1]["error"]["type"] == "server_error"
    assert not streamed.done
    plain = live.http.post(CHAT, json=chat("x"))
    assert plain.status_code == 500
    assert plain.json()["error"]["code"] == "device"


def test_one_failing_choice_ends_the_others(live, service):
    seeds = iter(range(10))
    service.script = lambda request, params: endless(0, 0) if next(seeds) == 0 else [Fault(DeviceError("no"))]
    assert live.http.post(CHAT, json=chat("x", n=2)).status_code == 500
    service.wait_until(lambda s: s.idle)


def test_prefill_is_bridged_with_comments_only(service):
    service.gate.clear()
    with live_server(service, ServerOptions(keep_alive_s=0.05)) as live:
        opener = threading.Timer(0.5, service.open)
        opener.start()
        streamed = read_stream(live.http, CHAT, chat("Say: hi"))
    assert streamed.comments >= 3
    assert streamed.text == "hi"
    assert streamed.headers["x-accel-buffering"] == "no"


def test_a_slow_load_is_bridged_with_comments_and_then_answered():
    gate = threading.Event()
    service = FakeService(load_gate=gate)
    with live_server(service, ServerOptions(keep_alive_s=0.05, headers_after_s=0.05)) as live:
        threading.Timer(0.4, gate.set).start()
        streamed = read_stream(live.http, CHAT, chat("Say: hi"))
    service.close()
    assert streamed.comments >= 3
    assert streamed.text == "hi"


def test_an_error_after_the_headers_of_a_slow_load_is_an_event():
    gate = threading.Event()
    service = FakeService(load_gate=gate)
    with live_server(service, ServerOptions(keep_alive_s=0.05, headers_after_s=0.05)) as live:
        threading.Timer(0.3, gate.set).start()
        streamed = read_stream(live.http, CHAT, chat("word " * 600))
    service.close()
    assert streamed.status == 200
    assert streamed.error["code"] == "context_length_exceeded"
    assert not streamed.done


def test_a_stream_that_is_refused_has_a_plain_status(live):
    streamed = read_stream(live.http, CHAT, chat("word " * 600))
    assert streamed.status == 400
    assert streamed.error["n_ctx"] == 512
    assert streamed.error["n_prompt_tokens"] > 600


def test_many_clients_at_once_each_get_their_own_answer(live):
    texts = [f"client {number} says {'x' * number}" for number in range(16)]
    found: dict[str, str] = {}

    def ask(text: str) -> None:
        found[text] = read_stream(live.http, CHAT, chat(f"Repeat: {text}")).text

    threads = [threading.Thread(target=ask, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {text: text for text in texts}


def test_a_stop_string_over_several_tokens_does_not_leak(live):
    body = {"model": "tiny", "prompt": "Say: ABC DEFGHIJ K", "stop": ["DEFGHIJ"], "return_token_ids": True}
    streamed = read_stream(live.http, "/v1/completions", body)
    assert streamed.joined("text") == "ABC "
    assert streamed.choices()[-1]["stop_reason"] == "DEFGHIJ"
    assert sum(len(choice["token_ids"]) for choice in streamed.choices()) == 11


def test_a_partial_stop_string_at_the_end_is_released(live):
    streamed = read_stream(live.http, CHAT, chat("Say: >>>>>>> UP", stop=[">>>>>>> UPD"]))
    assert streamed.text == ">>>>>>> UP"


def test_a_stop_token_is_reported(live):
    reply = live.http.post(CHAT, json=chat("Count", stop_token_ids=[ord("5")])).json()["choices"][0]
    assert reply["message"]["content"] == "1 2 3 4 "
    assert (reply["finish_reason"], reply["stop_reason"]) == ("stop", ord("5"))


def test_several_prompts_and_choices_are_numbered_by_prompt(live):
    body = {"model": "tiny", "prompt": ["Say: a", [WORD, 1], "Say: c"], "n": 2, "stream": False}
    reply = live.http.post("/v1/completions", json=body).json()
    assert [(c["index"], c["text"]) for c in reply["choices"]] == [
        (0, "a"), (1, "a"), (2, "tokens"), (3, "tokens"), (4, "c"), (5, "c"),
    ]  # fmt: skip
    assert reply["usage"]["prompt_tokens"] == 6 + 2 + 6


def test_echo_puts_the_prompt_in_front(live):
    body = {"model": "tiny", "prompt": "Say: a", "echo": True}
    assert live.http.post("/v1/completions", json=body).json()["choices"][0]["text"] == "Say: aa"
    assert read_stream(live.http, "/v1/completions", body).joined("text") == "Say: aa"
    ids = {**body, "prompt": [*b"Say: a"]}
    assert live.http.post("/v1/completions", json=ids).json()["choices"][0]["text"] == "Say: atokens"


def test_a_request_takes_no_longer_than_allowed(service):
    service.script = endless
    service.gate.clear()
    with live_server(service, ServerOptions(request_timeout_s=0.2)) as live:
        plain = live.http.post(CHAT, json=chat("x"))
        assert plain.status_code == 504
        assert plain.json()["error"]["code"] == "timeout"
        assert read_stream(live.http, CHAT, chat("x")).error["code"] == "timeout"
        service.wait_until(lambda s: s.idle)


def test_unloading_a_model_ends_its_streams_with_an_error(live, service):
    service.script = endless
    service.gate.clear()
    found = []
    thread = threading.Thread(target=lambda: found.append(read_stream(live.http, CHAT, chat("x"))))
    thread.start()
    service.wait_until(lambda s: s.running)
    assert live.http.post("/api/llmrun/v1/unload", json={"model": "tiny"}).json()["freed_bytes"] == 4096
    thread.join(10)
    assert found[0].error["code"] == "cancelled"
    assert not found[0].done
