"""A client that goes away leaves nothing running, wherever its request was."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from strata_cli.server.options import ServerOptions
from tests.support.fake_service import FakeService, endless
from tests.support.live_server import Live, live_server
from tests.support.sse_reader import read_stream

CHAT = "/v1/chat/completions"
_BODY = '{"model":"tiny","messages":[{"role":"user","content":"x"}],"ignore_eos":true,"stream":%s}'


def _hang_up_after(live: Live, stream: str, wait_for: bytes = b"") -> None:
    """Send a request over a bare socket, read until `wait_for` came, close."""
    host, port = live.url.removeprefix("http://").split(":")
    body = _BODY % stream
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall((head + body).encode())
        data = b""
        while wait_for not in data:
            data += line.recv(65536)


def _wait(true) -> None:
    deadline = time.monotonic() + 10
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.005)


def _cancelled(live: Live, phase: str) -> float:
    text = live.http.get("/metrics").text
    line = next(
        (x for x in text.splitlines() if x.startswith(f'llmrun:requests_cancelled_total{{phase="{phase}"}}')), "0"
    )
    return float(line.split()[-1])


@pytest.fixture
def service():
    made = FakeService(endless, context=100_000, pace_s=0.001)
    yield made
    made.close()


def test_two_hundred_disconnects_leave_nothing_running(service):
    with live_server(service) as live:
        for _ in range(200):
            _hang_up_after(live, "true", b'"content":"a"')
        service.wait_until(lambda s: s.idle)
        _wait(lambda: not live.state.live)
        assert _cancelled(live, "decode") == 200
        assert (
            read_stream(live.http, CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}).text
            == "aaa"
        )


def test_a_plain_request_is_cancelled_too(service):
    with live_server(service) as live:
        hung = threading.Thread(target=_hang_up_when_running, args=(live, service))
        hung.start()
        hung.join(10)
        service.wait_until(lambda s: s.idle)
        _wait(lambda: not live.state.live)


def _hang_up_when_running(live: Live, service: FakeService) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    body = _BODY % "false"
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: a.localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        service.wait_until(lambda s: s.running)


def test_a_queued_request_leaves_the_queue_at_once():
    service = FakeService(endless, max_sequences=1, context=1_000_000)
    service.gate.clear()
    with live_server(service) as live:
        with live.http.stream("POST", CHAT, content=_BODY % "true"):
            service.wait_until(lambda s: len(s.running) == 1)
            queued = threading.Thread(target=_hang_up_after, args=(live, "true", b"200 OK"))
            queued.start()
            queued.join(10)
            service.wait_until(lambda s: not s.waiting)
            assert len(service.running) == 1
            _wait(lambda: _cancelled(live, "queued") == 1)
        service.wait_until(lambda s: s.idle)
        assert _cancelled(live, "prefill") == 1
    service.close()


def test_a_client_that_leaves_during_the_load_starts_nothing():
    gate = threading.Event()
    service = FakeService(endless, load_gate=gate, context=1_000_000)
    with live_server(service, ServerOptions(headers_after_s=0.01)) as live:
        _hang_up_after(live, "true", b"200 OK")
        _wait(lambda: not live.state.live)
        gate.set()
        _wait(lambda: service.models)
        assert service.idle
    service.close()


def test_health_answers_while_the_engine_is_busy(service):
    with live_server(service) as live:
        with live.http.stream("POST", CHAT, content=_BODY % "true"):
            service.wait_until(lambda s: s.running)
            for _ in range(20):
                assert live.http.get("/health").json() == {"status": "ok"}
            assert service.running  # answered beside the stream, not after it


def test_a_full_queue_is_said_with_a_time_to_come_back():
    service = FakeService(endless, max_sequences=1, max_queue=1)
    service.gate.clear()
    with live_server(service) as live:
        with live.http.stream("POST", CHAT, content=_BODY % "true"):
            service.wait_until(lambda s: len(s.running) == 1)
            with live.http.stream("POST", CHAT, content=_BODY % "true"):
                service.wait_until(lambda s: len(s.waiting) == 1)
                third = live.http.post(CHAT, content=_BODY % "true")
                assert third.status_code == 503
                assert third.headers["retry-after"] == "1"
                assert third.json()["error"]["code"] == "queue_full"
                both = live.http.post(CHAT, content=(_BODY % "false").replace("}]", '}],"n":2'))
                assert both.status_code == 503
        service.wait_until(lambda s: s.idle)
    service.close()
