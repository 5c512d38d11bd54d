"""Spellings of an address, server.json, and sockets."""

from __future__ import annotations

import json
import os
import socket

import pytest

from strata_cli.address import Address, is_loopback, parse_address
from strata_cli.server.sockets import bind_tcp, bind_unix
from strata_cli.server_record import ServerRecord, read_record, remove_record, write_record
from strata_engine.errors import ServerError, UsageError
from tests.support.fake_service import FakeService
from tests.support.live_server import live_server


@pytest.mark.parametrize(("text", "host", "port", "url"), [
    ("127.0.0.1", "127.0.0.1", 8080, "http://127.0.0.1:8080"),
    (":9090", "127.0.0.1", 9090, "http://127.0.0.1:9090"),
    ("[::1]:9090", "::1", 9090, "http://[::1]:9090"),
    ("[::1]", "::1", 8080, "http://[::1]:8080"),
    ("::1", "::1", 8080, "http://[::1]:8080"),
    ("0.0.0.0:1", "0.0.0.0", 1, "http://127.0.0.1:1"),
    ("::", "::", 8080, "http://[::1]:8080"),
    ("box.lan:80/", "box.lan", 80, "http://box.lan:80"),
    ("http://box", "box", 80, "http://box:80"),
    ("https://box/llm/", "box", 443, "https://box:443/llm"),
    ("http://127.0.0.1:8080/v1", "127.0.0.1", 8080, "http://127.0.0.1:8080"),
    (" localhost ", "localhost", 8080, "http://localhost:8080"),
])  # fmt: skip
def test_spellings(text, host, port, url):
    found = parse_address(text)
    assert (found.host, found.port, found.url) == (host, port, url)


@pytest.mark.parametrize(
    "text", ["", "a b", "host:port", "host:99999", "[::1", "[x]:1", "ftp://x", "http://", "a:1:2", "x/y"]
)
def test_what_is_no_address(text):
    with pytest.raises(UsageError):
        parse_address(text)


@pytest.mark.parametrize(("host", "wanted"), [
    ("localhost", True), ("LOCALHOST.", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True),
    ("a.localhost", True),
    ("0.0.0.0", False), ("::", False), ("localhost.evil.example", False), ("127.0.0.1.evil.example", False),
    ("10.0.0.1", False), ("", False), ("::ffff:8.8.8.8", False),
])  # fmt: skip
def test_loopback(host, wanted):
    assert is_loopback(host) is wanted


def test_a_record_is_believed_only_while_its_process_lives(tmp_path):
    file = tmp_path / "deep" / "server.json"
    assert read_record(file) is None
    record = ServerRecord(os.getpid(), "127.0.0.1", 5)
    write_record(file, record)
    assert read_record(file) == record
    assert file.stat().st_mode & 0o777 == 0o600
    remove_record(file, 1)
    assert file.exists()
    remove_record(file, os.getpid())
    assert not file.exists()
    for broken in (
        "",
        "[]",
        "{}",
        json.dumps({"pid": 2**30, "host": "x", "port": 1}),
        '{"pid":"x","host":"x","port":1}',
    ):
        file.write_text(broken)
        assert read_record(file) is None


def test_a_taken_port_names_llmrun_and_gives_a_way_out():
    service = FakeService()
    with live_server(service) as live:
        with pytest.raises(ServerError) as caught:
            bind_tcp(parse_address(live.url))
        assert "another llmrun server" in caught.value.message
        assert caught.value.hint.startswith("--port 0")
        assert caught.value.exit_code == 9
    service.close()


def test_a_port_taken_by_others_is_said_so():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ServerError, match="another program"):
        bind_tcp(Address("127.0.0.1", taken.getsockname()[1]))


def test_two_servers_that_have_not_begun_yet_do_not_share_a_port():
    with bind_tcp(Address("127.0.0.1", 0)) as first, pytest.raises(ServerError):
        bind_tcp(Address("127.0.0.1", first.getsockname()[1]))


def test_an_unknown_host_is_a_usage_error():
    with pytest.raises(UsageError):
        bind_tcp(Address("no-such-host.invalid", 0))


def test_a_socket_file_is_private_and_a_dead_one_is_replaced(tmp_path):
    path = tmp_path / "s.sock"
    with bind_unix(path):
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(ServerError, match="in use"):
            bind_unix(path)
    with bind_unix(path):
        assert path.is_socket()
    plain = tmp_path / "file"
    plain.write_text("x")
    with pytest.raises(UsageError, match="no socket"):
        bind_unix(plain)
    assert plain.read_text() == "x"
    with pytest.raises(ServerError):
        bind_unix(tmp_path / ("x" * 200))
