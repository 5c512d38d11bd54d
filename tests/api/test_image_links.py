"""Images behind http links: what is fetched, and what never is. The server is a local one, the resolver is injected."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from strata_cli.server import images
from strata_cli.server.errors import BadField
from strata_cli.server.images import fetch, fetched, is_public, public_addresses
from strata_engine.chat import ChatRequest, Message, Part

BODY = b"an image, or so it says"
SHOWN = "img.test"  # the only host that the injected resolver takes for a public one


class _Pages(BaseHTTPRequestHandler):
    asked: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Host"]))
        page = getattr(self, "page_" + self.path.strip("/").partition("/")[0])
        page()

    def page_cat(self) -> None:
        self._answer(200, BODY, ("Content-Type", "image/png; charset=x"))

    def page_missing(self) -> None:
        self._answer(404, b"no")

    def page_moved(self) -> None:
        self._answer(302, b"", ("Location", "/cat"))

    def page_loop(self) -> None:
        self._answer(302, b"", ("Location", "/loop"))

    def page_inside(self) -> None:
        self._answer(302, b"", ("Location", f"http://127.0.0.1:{self.server.server_port}/cat"))

    def page_file(self) -> None:
        self._answer(301, b"", ("Location", "file:///etc/passwd"))

    def page_nowhere(self) -> None:
        self._answer(302, b"")

    def page_endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"x" * 512)
        except OSError:  # the client has had enough
            self.close_connection = True

    def _answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for header in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


class Site:
    """A running server: where it is, and (path, Host) of every request it got."""

    def __init__(self, server: ThreadingHTTPServer, asked: list[tuple[str, str]]) -> None:
        self.port, self.asked = server.server_port, asked

    def link(self, page: str, host: str = SHOWN) -> str:
        return f"http://{host}:{self.port}/{page}"


@pytest.fixture
def site() -> Iterator[Site]:
    asked: list[tuple[str, str]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Pages", (_Pages,), {"asked": asked}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield Site(server, asked)
    server.shutdown()
    thread.join(20)
    server.server_close()


def lookup(host: str, port: int) -> list[str]:
    return ["127.0.0.1"] if host == SHOWN else public_addresses(host, port)


def test_the_content_and_its_type_come_from_the_address_that_was_looked_up(site):
    assert fetch(site.link("cat"), "x", lookup) == (BODY, "image/png")
    assert site.asked == [("/cat", f"{SHOWN}:{site.port}")]


def test_a_redirect_is_followed(site):
    assert fetch(site.link("moved"), "x", lookup)[0] == BODY


@pytest.mark.parametrize(("page", "says"), [
    ("missing", "status 404"), ("loop", "leads on more than 3 times"), ("inside", "127.0.0.1 is not a public address"),
    ("file", "not an http link"), ("nowhere", "leads on more than 3 times"),
])  # fmt: skip
def test_what_does_not_lead_to_an_image_is_refused(site, page, says):
    with pytest.raises(BadField, match=says):
        fetch(site.link(page), "x", lookup)
    assert all(path != "/cat" for path, _ in site.asked)


def test_more_bytes_than_the_limit_are_not_read(site, monkeypatch):
    monkeypatch.setattr(images, "MOST_BYTES", 2000)
    with pytest.raises(BadField, match="more than 2"):
        fetch(site.link("endless"), "x", lookup)


def test_an_answer_without_end_is_left(site, monkeypatch):
    monkeypatch.setattr(images, "MOST_BYTES", 1 << 40)
    now = iter(range(0, 10_000, 4))  # seconds: each look at the clock is four later
    monkeypatch.setattr(images, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    with pytest.raises(BadField, match="not finished in 15 s"):
        fetch(site.link("endless"), "x", lookup)


@pytest.mark.parametrize("host", [
    "127.0.0.1", "localhost", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
    "224.0.0.1", "2130706433", "0x7f.1", "[::1]", "[::]", "[fd00::1]", "[fe80::1]", "[ff02::1]", "[fec0::1]",
    "[::ffff:127.0.0.1]", "[::127.0.0.1]", "[64:ff9b::10.0.0.1]", "[2002:7f00:1::]",
])  # fmt: skip
def test_private_addresses_are_refused_however_they_are_spelled(site, host):
    with pytest.raises(BadField, match="could not be fetched"):
        fetch(site.link("cat", host), "x")
    assert site.asked == []


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_addresses_of_the_open_internet_are_public(address):
    assert is_public(address)


def test_one_private_address_among_several_is_enough(monkeypatch):
    found = [(0, 0, 0, "", (address, 80)) for address in ("8.8.8.8", "10.0.0.1")]
    names = SimpleNamespace(getaddrinfo=lambda *args, **options: found, SOCK_STREAM=1)
    monkeypatch.setattr(images, "socket", names)
    with pytest.raises(ValueError, match="not a public address"):
        public_addresses("two.test", 80)


def test_the_parts_of_a_request_are_filled_in_place(site, monkeypatch):
    monkeypatch.setattr(images, "fetch", lambda link, where: fetch(link, where, lookup))
    inline = Part("image", data=b"here")
    request = ChatRequest((
        Message.of("user", "hi"),
        Message("user", (Part("text", "a"), Part("image", text=site.link("cat")), inline)),
    ))  # fmt: skip
    filled = fetched(request, allowed=True)
    assert filled.messages[0] is request.messages[0]
    assert filled.messages[1].parts == (Part("text", "a"), Part("image", data=BODY, media_type="image/png"), inline)


def test_a_fault_names_the_part(site):
    request = ChatRequest((Message("user", (Part("text", "a"), Part("image", text="http://127.0.0.1/x.png"))),))
    with pytest.raises(BadField) as caught:
        fetched(request, allowed=True)
    assert "messages.0.content.1" in str(vars(caught.value)) + str(caught.value)
