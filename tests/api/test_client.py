"""RemoteService against a live server: the same events as a Service in this process."""

from __future__ import annotations

import os
import threading

import pytest

from strata_cli.address import parse_address
from strata_cli.app import App
from strata_cli.client import RemoteService, find_server
from strata_cli.globals import GlobalFlags
from strata_cli.output import Output
from strata_cli.server.options import ServerOptions
from strata_cli.server_record import ServerRecord, write_record
from strata_engine.chat import ChatRequest, Message, TokenRequest
from strata_engine.config import EngineConfig, SamplingParams
from strata_engine.env import Env
from strata_engine.errors import ContextExceeded, DeviceError, NotFound, QueueFull, ServerError, UsageError
from strata_engine.events import Drafts, Failed, Finish, Reasoning, Started, Text
from tests.support.fake_service import END, ByteTokenizer, Fault, endless, say
from tests.support.live_server import live_server


def ask(text: str, **more) -> ChatRequest:
    return ChatRequest((Message.of("user", text),), **more)


def make_app(home, **env: str) -> App:
    values = Env({"LLMRUN_HOME": str(home), **env})
    return App(GlobalFlags(), values, values.paths(), Output())


@pytest.fixture
def remote(live):
    made = RemoteService(parse_address(live.url))
    made.load("tiny")
    yield made
    made.close()


def test_a_chat_gives_the_events_of_a_local_one(remote):
    events = list(remote.stream("tiny", ask("Say: hé"), SamplingParams()))
    assert isinstance(events[0], Started)
    assert "".join(e.text for e in events if isinstance(e, Text)) == "hé"
    assert [t.id for e in events if isinstance(e, Text) for t in e.tokens] == list("hé".encode())
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.usage.completion_tokens, [t.id for t in finish.tokens]) == ("stop", 4, [END])
    assert finish.timings.decode_s > 0


def test_counts_of_drafts_arrive_as_they_were(remote, service):
    for drafts in (Drafts(6, 5, 15, 9, (4, 3, 2), 0.75), Drafts(2), None):
        service.drafts = drafts
        assert list(remote.stream("tiny", ask("Say: a"), SamplingParams()))[-1].drafts == drafts
        assert remote.load_numbers("tiny") == service.load_numbers("tiny")


def test_parameters_arrive_as_they_were(remote, service):
    params = SamplingParams(
        max_tokens=3, temperature=0.1, top_k=5, top_p=0.5, min_p=0.2, repeat_penalty=1.3, penalty_last_n=9,
        presence_penalty=0.5, frequency_penalty=-0.5, seed=11, stop=("zz",), stop_token_ids=(7,), ignore_eos=True,
        min_tokens=1, logit_bias=((5, -3.0),), logprobs=2, include_stop=True, speculate=False,
    )  # fmt: skip
    list(remote.stream("tiny", ask("x"), params))
    assert service.params[-1] == params
    list(remote.stream("tiny", ask("x"), SamplingParams()))
    assert service.params[-1] == SamplingParams()


def test_a_conversation_arrives_as_it_was(remote, service):
    request = ChatRequest(
        (Message.of("system", "s"), Message.of("user", "u"), Message.of("assistant", "a")),
        thinking="low", continue_final=True, template_kwargs={"k": 1},
    )  # fmt: skip
    list(remote.stream("tiny", request, SamplingParams(max_tokens=1)))
    assert service.requests[-1] == request


def test_logprobs_arrive_on_both_routes(remote):
    params = SamplingParams(logprobs=1, max_tokens=2)
    for request in (ask("Say: ab"), TokenRequest(ids=tuple(b"Say: ab"))):
        tokens = [t for e in remote.stream("tiny", request, params) if isinstance(e, Text) for t in e.tokens]
        assert [(t.logprob, t.top) for t in tokens] == [(-0.5, ((t.id, -0.5),)) for t in tokens]
        assert len(tokens) == 2


def test_thinking_arrives_as_reasoning(remote, service):
    service.script = lambda request, params: say("<think>hm</think>yes")
    events = list(remote.stream("tiny", ask("x", thinking=True), SamplingParams()))
    assert "".join(e.text for e in events if isinstance(e, Reasoning)) == "hm"
    assert "".join(e.text for e in events if isinstance(e, Text)) == "yes"


def test_refusals_are_the_same_classes(remote, service):
    with pytest.raises(ContextExceeded) as caught:
        remote.stream("tiny", ask("word " * 600), SamplingParams())
    assert caught.value.details["n_ctx"] == 512
    with pytest.raises(NotFound):
        remote.stream("other", ask("x"), SamplingParams())
    service.max_queue = 0
    with pytest.raises(QueueFull):
        remote.stream("tiny", ask("x"), SamplingParams())


def test_a_fault_in_the_middle_is_raised_after_the_text(remote, service):
    service.script = lambda request, params: [*b"ab", Fault(DeviceError("gone"))]
    seen = []
    with pytest.raises(DeviceError, match="gone"):
        seen.extend(e.text for e in remote.stream("tiny", ask("x"), SamplingParams()) if isinstance(e, Text))
    events = []
    ended = threading.Event()

    def sink(event):
        events.append(event)
        if isinstance(event, Failed):
            ended.set()

    remote.stream("tiny", ask("x"), SamplingParams(), sink)
    assert ended.wait(10)
    assert events[-1].error.message == "gone"


def test_closing_from_another_thread_ends_the_iteration_and_the_sequence(remote, service):
    service.script = endless
    stream = remote.stream("tiny", ask("x"), SamplingParams(max_tokens=400))
    service.wait_until(lambda s: s.running or s.idle)
    service.gate.clear()
    threading.Timer(0.1, stream.close).start()
    events = list(stream)
    service.open()
    assert events[-1].reason in ("cancelled", "length")
    service.wait_until(lambda s: s.idle)


def test_what_a_server_holds(remote, service):
    (model,) = remote.loaded()
    assert model == service.loaded()[0]
    assert remote.load_numbers("tiny").kv_pages_total == 100
    assert remote.report("tiny").memory == {"weights": 4096}
    with pytest.raises(NotFound):
        remote.load_numbers("other")
    with pytest.raises(UsageError):
        remote.load("tiny", EngineConfig())
    assert remote.unload("tiny") == 4096
    assert remote.loaded() == []


def test_the_tokenizer_works_over_http(remote):
    there, here = remote.text("tiny").tokenizer, ByteTokenizer()
    text = "héllo<|im_end|>"
    for special in (True, False):
        assert there.encode(text, special) == here.encode(text, special)
    ids = here.encode(text, True)
    assert [there.piece(i) for i in ids] == [here.piece(i) for i in ids]
    assert there.decode(ids, control=False) == "héllo"
    assert there.is_control(END)
    assert (there.vocab_size, there.bos_id, there.eos_ids) == (here.vocab_size, here.bos_id, here.eos_ids)


def test_a_server_that_wants_a_key_says_so(service):
    with live_server(service, ServerOptions(keys=("k",))) as live:
        with RemoteService(parse_address(live.url)) as stranger, pytest.raises(ServerError, match="refused the key"):
            stranger.loaded()
        with RemoteService(parse_address(live.url), "k") as friend:
            assert friend.loaded() == []


def test_nobody_there_is_exit_code_9():
    with RemoteService(parse_address("127.0.0.1:9")) as nobody, pytest.raises(ServerError) as caught:
        nobody.loaded()
    assert caught.value.exit_code == 9


def test_the_running_server_is_found_by_its_record_or_its_address(tmp_path, live):
    assert find_server(make_app(tmp_path)) is None
    address = parse_address(live.url)
    with find_server(make_app(tmp_path, LLMRUN_HOST=f"127.0.0.1:{address.port}")) as found:
        assert found.url == live.url
    assert find_server(make_app(tmp_path, LLMRUN_HOST="127.0.0.1:9")) is None
    app = make_app(tmp_path)
    write_record(app.paths.server_file, ServerRecord(os.getpid(), "127.0.0.1", address.port))
    for found in (find_server(app), find_server(app, live.url)):
        with found:
            assert found.url == live.url
    with pytest.raises(ServerError):
        find_server(app, "127.0.0.1:9")


def test_proxy_variables_do_not_reach_loopback(live, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with RemoteService(parse_address(live.url)) as remote:
        assert remote.loaded() == []
