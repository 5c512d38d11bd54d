"""Signals: open streams may end, then get an error as their last event; nobody else gets in."""

from __future__ import annotations

import json
import os
import signal
import stat
import threading

import httpx
import pytest

from tests.support.process import server_process
from tests.support.sse_reader import Streamed, read_stream

BODY = {"messages": [{"role": "user", "content": "x"}]}


def _stream_in_threads(http: httpx.Client, count: int) -> tuple[list[Streamed], list[threading.Thread]]:
    found: list[Streamed] = []
    threads = [
        threading.Thread(target=lambda: found.append(read_stream(http, "/v1/chat/completions", BODY)))
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    return found, threads


def _until_running(http: httpx.Client, count: int) -> None:
    while sum(slot["is_processing"] for slot in http.get("/slots").json()) < count:
        pass


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_streams_end_with_an_error_event_after_the_drain(tmp_path, number, code):
    arguments = ["-W", "error", "-m", "tests.support.fake_serve", "0.3"]
    with server_process(tmp_path, arguments) as (process, url), httpx.Client(base_url=url, trust_env=False) as http:
        found, threads = _stream_in_threads(http, 4)
        _until_running(http, 4)
        process.send_signal(number)
        for thread in threads:
            thread.join(20)
        assert process.wait(20) == code
        assert process.stderr is not None
        notes = process.stderr.read()
    assert [streamed.error["code"] for streamed in found] == ["shutting_down"] * 4
    assert not any(streamed.done for streamed in found)
    assert all(streamed.text for streamed in found)
    assert "4 open requests" in notes
    assert "Traceback" not in notes


def test_an_idle_server_stops_at_once_and_forgets_its_record(tmp_path):
    with server_process(tmp_path, ["-m", "tests.support.fake_serve", "30"]) as (process, url):
        file = tmp_path / "state" / "server.json"
        record = json.loads(file.read_text())
        assert url == f"http://127.0.0.1:{record['port']}"
        assert record["pid"] == process.pid
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
        process.terminate()
        assert process.wait(5) == 143
        assert not file.exists()


def test_a_second_signal_ends_the_drain(tmp_path):
    arguments = ["-m", "tests.support.fake_serve", "60"]
    with server_process(tmp_path, arguments) as (process, url), httpx.Client(base_url=url, trust_env=False) as http:
        found, threads = _stream_in_threads(http, 1)
        _until_running(http, 1)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "Ctrl-C ends them now" in process.stderr.readline()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health", trust_env=False)
        process.send_signal(signal.SIGINT)
        threads[0].join(20)
        assert process.wait(20) == 130
    assert found[0].error["code"] == "shutting_down"
