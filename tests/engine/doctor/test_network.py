"""Checks of the network against small servers on this machine."""

from __future__ import annotations

import email.utils
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from strata_engine.doctor import network


class Handler(BaseHTTPRequestHandler):
    status, skew_s = 200, 0.0

    def do_HEAD(self) -> None:
        self.send_response_only(self.status)
        self.send_header("Date", email.utils.formatdate(time.time() + self.skew_s, usegmt=True))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[type[Handler]]:
    kind = type("Own", (Handler,), {})
    listening = HTTPServer(("127.0.0.1", 0), kind)
    kind.url = f"http://127.0.0.1:{listening.server_port}/"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield kind
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_host_that_answers_is_ok_whatever_the_status(server):
    server.status = 404
    [check] = network.check_hosts(network.ask_all({"hub": server.url}))
    assert (check.name, check.status) == ("hub", "ok")


def test_a_host_that_refuses_is_a_warning_and_the_remedy_depends_on_the_others(server, closed_port):
    dead = f"http://127.0.0.1:{closed_port}/"
    [check] = network.check_hosts(network.ask_all({"hub": dead}))
    assert check.status == "warn" and "proxy" in check.remedy
    both = network.check_hosts(network.ask_all({"hub": dead, "other": server.url}))
    assert [c.status for c in both] == ["warn", "ok"]
    assert "another source" in both[0].text


def test_a_silent_host_costs_no_more_than_the_time_limit(monkeypatch):
    monkeypatch.setattr(network, "TIMEOUT_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        started = time.monotonic()
        [answer] = network.ask_all({"hub": f"http://127.0.0.1:{silent.getsockname()[1]}/"})
        assert answer.fault
        assert time.monotonic() - started < 20  # the host would be silent for ever


@pytest.mark.parametrize("url", ["not a url", "http://", "ftp://x/", "http://[::1/"])
def test_an_unusable_address_is_a_fault_not_a_crash(url):
    [answer] = network.ask_all({"hub": url})
    assert answer.fault


def test_a_clock_that_agrees_is_ok(server):
    assert network.check_clock(network.ask_all({"hub": server.url})).status == "ok"


@pytest.mark.parametrize(("skew_s", "word"), [(3600.0, "behind"), (-3600.0, "ahead of")])
def test_a_wrong_clock_is_a_warning_that_says_which_way(server, skew_s, word):
    server.skew_s = skew_s
    check = network.check_clock(network.ask_all({"hub": server.url}))
    assert check.status == "warn" and word in check.text and check.remedy


def test_without_a_date_there_is_nothing_to_compare_the_clock_with():
    assert network.check_clock([network.Answer("hub", "u", "down")]).status == "skip"


def test_offline_asks_nobody():
    checks = network.skipped({"hub": "http://127.0.0.1:9/", "package index": ""})
    assert [c.status for c in checks] == ["skip", "skip"]


def test_a_proxy_is_shown_without_its_password():
    check = network.check_proxy({"http": "http://user:secret@proxy:3128", "https": "proxy:3128", "no": "localhost"})
    assert "secret" not in check.text
    assert "http=http://***@proxy:3128" in check.text and "https=http://proxy:3128" in check.text


def test_no_proxy_is_said_too():
    assert network.check_proxy({}).text == "none set"


def test_a_malformed_proxy_is_shown_as_such():
    assert "(malformed)" in network.check_proxy({"http": "http://[::1:99999"}).text
