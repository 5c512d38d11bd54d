"""Load against a small real HTTP server: times, counts, faults and statistics."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from strata_engine.bench.load import LoadPlan, LoadResult, arrivals, body, measure, percentile, summary
from strata_engine.bench.requests import Sample
from strata_engine.errors import ServerError


class Handler(BaseHTTPRequestHandler):
    """Streams `tokens` chunks; the prompt word `fail` gives a 503."""

    protocol_version = "HTTP/1.1"
    most = 0
    running = 0
    lock = threading.Lock()

    def do_POST(self) -> None:  # noqa: N802 - the base class's name
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with Handler.lock:
            Handler.running += 1
            Handler.most = max(Handler.most, Handler.running)
        if sent["model"] == "full":
            data = b'{"error": {"message": "queue full"}}'
            self.send_response(503)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        else:
            self.stream(sent)
        with Handler.lock:
            Handler.running -= 1

    def stream(self, sent: dict) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        count = sent["max_tokens"]
        chunks = [{"choices": [{"text": ""}]}]
        chunks += [{"choices": [{"text": "a\u2028b"}]} for _ in range(count)]
        usage = {"prompt_tokens": len(sent["prompt"].split()), "completion_tokens": count}
        chunks.append({"choices": [], "usage": usage})
        if sent["model"] == "broken":
            chunks[2:] = [{"error": {"message": "engine fault"}}]
        for chunk in chunks:
            self.piece(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode())
        self.piece(b"data: [DONE]\n\n")
        self.piece(b"")

    def piece(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def log_message(self, *args) -> None:
        pass


@contextmanager
def serving() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    Handler.most = 0
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def plan(url: str, **changes) -> LoadPlan:
    return LoadPlan(
        **{"url": url, "model": "m", "requests": 6, "concurrency": 2, "prompt_tokens": 5, "max_tokens": 4} | changes
    )


def test_every_request_is_timed_and_counted_by_the_servers_usage():
    counts: list[int] = []
    with serving() as url:
        found = measure(plan(url), counts.append)
    assert counts == [1, 2, 3, 4, 5, 6]
    assert [(s.prompt_tokens, s.output_tokens, len(s.gaps_s), s.error) for s in found.samples] == [(5, 4, 3, "")] * 6
    assert all(0 < s.first_s <= s.last_s <= found.wall_s for s in found.samples)
    assert Handler.most <= 2


def test_a_proxy_from_the_environment_is_not_used_for_loopback(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving() as url:
        assert [s.error for s in measure(plan(url, requests=1)).samples] == [""]


def test_failures_are_counted_and_named():
    with serving() as url:
        found = measure(plan(url, model="full", warmups=0))
    data = summary(found, [50], {})
    assert (data["failed"], data["requests"], data["output_tps"]) == (6, 6, 0)
    assert "503" in data["errors"][0]
    assert data["metrics_ms"]["ttft"] == {"n": 0}


def test_an_error_inside_a_stream_is_a_failure():
    with serving() as url:
        assert "engine fault" in measure(plan(url, model="broken", requests=1, warmups=0)).samples[0].error


def test_a_server_that_is_not_there_is_said_at_once():
    with pytest.raises(ServerError):
        measure(plan("http://127.0.0.1:9"))


def test_statistics_follow_their_definitions():
    samples = (
        Sample(first_s=0.1, last_s=0.5, gaps_s=[0.2, 0.2], prompt_tokens=10, output_tokens=3),
        Sample(first_s=0.3, last_s=1.1, gaps_s=[0.4, 0.4], prompt_tokens=10, output_tokens=3),
        Sample(first_s=0.2, last_s=0.2, output_tokens=1, prompt_tokens=10),
    )
    data = summary(LoadResult(plan("http://h"), samples, 2.0), [50, 100], {"ttft": 250, "tpot": 300})
    ms = data["metrics_ms"]
    assert (ms["tpot"]["n"], ms["tpot"]["mean"], ms["ttft"]["p100"], ms["e2el"]["median"]) == (2, 300.0, 300.0, 500.0)
    assert (data["output_tps"], data["total_tps"], data["requests_per_s"]) == (3.5, 18.5, 1.5)
    assert data["goodput"]["requests"] == 2


def test_arrivals_follow_the_rate_and_the_seed():
    times = arrivals(plan("http://h", requests=2000, rate=10.0))
    assert times == sorted(times)
    assert times[-1] == pytest.approx(200, rel=0.1)
    assert times == arrivals(plan("http://h", requests=2000, rate=10.0))
    assert set(arrivals(plan("http://h"))) == {0.0}


def test_prompts_differ_between_requests_and_repeat_between_runs():
    first = [body(plan("http://h"), n)["prompt"] for n in range(4)]
    assert len(set(first)) == 4
    assert first == [body(plan("http://h"), n)["prompt"] for n in range(4)]


def test_percentiles_interpolate():
    assert [percentile([1.0, 2.0, 4.0], p) for p in (0, 50, 75, 100)] == [1.0, 2.0, 3.0, 4.0]
