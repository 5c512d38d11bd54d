"""The downloader against every way a server can be wrong (cases DL-01 to DL-21)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from strata_engine.errors import AuthError, HashMismatch, NetworkError, NotFound, OutOfMemory
from strata_engine.registry import journal
from strata_engine.registry.download import Transfer, TransferOptions
from strata_engine.registry.journal import good_bytes, read_record, record_path
from strata_engine.registry.limits import Patience
from strata_engine.registry.remote import Remote
from strata_engine.registry.web import make_client, retry_after
from tests.support.fake_hub import FakeHub
from tests.support.registry import QUICK, gguf_like, sha

BODY = gguf_like(3_000_000)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as running:
        yield running


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with make_client() as made:
        yield made


class Fetcher:
    """One transfer into a temporary part."""

    def __init__(self, client: httpx.Client, folder: Path) -> None:
        self.client = client
        self.part = folder / "x.part"
        self.said: list[str] = []
        self.ticks: list[int] = []

    def __call__(self, url: str, how: TransferOptions = QUICK, **fields) -> bytes:
        given = {"name": "x.gguf", "size": len(BODY), "sha256": sha(BODY), **fields}
        say = lambda kind, text: self.said.append(f"{kind}: {text}")  # noqa: E731
        Transfer(self.client, Remote(url, **given), self.part, how, lambda done, _: self.ticks.append(done), say).run()
        return self.part.read_bytes()


@pytest.fixture
def fetch(client: httpx.Client, tmp_path: Path) -> Fetcher:
    return Fetcher(client, tmp_path)


def keep_half(fetch: Fetcher, hub: FakeHub, url: str, path: str, **fields) -> int:
    """Leave an interrupted transfer behind; returns the bytes it kept."""
    hub.served[path].drop_after = [1 << 30, 300_000]
    with pytest.raises(NetworkError):
        fetch(url, TransferOptions(1, patience=Patience(1)), **fields)
    hub.served[path].drop_after = []
    return good_bytes(fetch.part)


def test_all_parts_of_a_file_arrive(hub: FakeHub, fetch: Fetcher):
    assert fetch(hub.serve("/x", BODY, etag='"v1"')) == BODY
    assert len({a.range for a in hub.requests("/x")}) >= 3
    assert fetch.ticks[-1] == len(BODY)


def test_an_interrupted_file_goes_on_where_it_stopped(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", BODY, etag='"v1"')
    kept = keep_half(fetch, hub, url, "/x")
    hub.asked.clear()
    assert fetch(url) == BODY
    assert 0 < kept < len(BODY)
    assert f"bytes={kept}-" in " ".join(a.range for a in hub.asked)
    assert all(a.headers.get("if-range") == '"v1"' for a in hub.asked if a.range != "bytes=0-0")


def test_a_changed_etag_begins_anew(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", BODY, etag='"v1"')
    keep_half(fetch, hub, url, "/x", sha256="")
    other = gguf_like(len(BODY), seed=2)
    hub.serve("/x", other, etag='"v2"')
    assert fetch(url, sha256="") == other


def test_an_etag_that_changes_during_the_transfer_begins_anew(hub: FakeHub, fetch: Fetcher):
    other = gguf_like(len(BODY), seed=2)
    url = hub.serve("/x", other, etag='"v2"')
    first = hub.served["/x"]
    first.etag = '"v1"'

    def tick(done: int, _total: int) -> None:
        if done and first.etag == '"v1"':
            first.etag = '"v2"'

    slow = TransferOptions(1, 6_000_000, Patience(3, 0.01, 0.02))
    remote = Remote(url, "x.gguf", len(other))
    Transfer(fetch.client, remote, fetch.part, slow, tick, lambda k, t: fetch.said.append(k)).run()
    assert fetch.part.read_bytes() == other
    assert "restart" in fetch.said


def test_a_server_without_ranges_sends_the_whole_file_from_the_start(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", BODY, etag='"v1"')
    keep_half(fetch, hub, url, "/x")
    hub.serve("/x", BODY, etag='"v1"', ranges="no")
    assert fetch(url) == BODY


def test_without_ranges_a_cut_connection_begins_anew(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", BODY, ranges="no", drop_after=[10, 500_000])
    assert fetch(url) == BODY


@pytest.mark.parametrize("ranges", ["wrong-start", "early-start", "no-header"])
def test_a_206_with_another_or_no_content_range_does_not_spoil_the_file(hub: FakeHub, fetch: Fetcher, ranges: str):
    url = hub.serve("/x", BODY, etag='"v1"')
    keep_half(fetch, hub, url, "/x")
    hub.serve("/x", BODY, etag='"v1"', ranges=ranges)
    assert fetch(url) == BODY


def test_a_partial_longer_than_announced_is_dropped(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", BODY, etag='"v1"')
    keep_half(fetch, hub, url, "/x")
    with fetch.part.open("ab") as stream:
        stream.write(b"x" * (len(BODY) + 10))
    assert read_record(fetch.part) is None
    assert fetch(url) == BODY


def test_a_partial_without_a_journal_is_dropped(hub: FakeHub, fetch: Fetcher):
    fetch.part.write_bytes(b"rubbish" * 1000)
    hub_url = hub.serve("/x", BODY, etag='"v1"')
    assert fetch(hub_url) == BODY
    assert any(a.range.startswith("bytes=0-") and a.range != "bytes=0-0" for a in hub.asked)


def test_a_journal_without_its_partial_is_dropped(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", BODY, etag='"v1"')
    keep_half(fetch, hub, url, "/x")
    fetch.part.unlink()
    assert fetch(url) == BODY


def test_a_complete_partial_is_not_fetched_again(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", BODY, etag='"v1"')
    fetch(url)
    hub.asked.clear()
    assert fetch(url) == BODY
    assert [a.range for a in hub.asked] == ["bytes=0-0"]


def test_a_compressed_answer_is_unpacked(hub: FakeHub, fetch: Fetcher):
    assert fetch(hub.serve("/x", BODY, compressed=True)) == BODY


def test_the_server_is_asked_not_to_compress(hub: FakeHub, fetch: Fetcher):
    fetch(hub.serve("/x", BODY))
    assert {a.headers["accept-encoding"] for a in hub.asked} == {"identity"}


def test_an_unknown_length_is_read_to_the_end(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", BODY, ranges="no", no_length=True)
    assert fetch(url, size=0, sha256="") == BODY


def test_an_empty_answer_is_tried_again(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", BODY, ranges="no", bodies=[b"", b""])
    assert fetch(url) == BODY
    assert any("empty" in text or "nothing" in text for text in fetch.said)


def test_an_answer_that_stays_empty_ends_with_an_error(hub: FakeHub, fetch: Fetcher):
    with pytest.raises(NetworkError, match="empty file"):
        fetch(hub.serve("/x", b"", ranges="no"))


def test_another_length_than_expected_is_a_mismatch_with_both_numbers(hub: FakeHub, fetch: Fetcher):
    with pytest.raises(HashMismatch, match=f"{len(BODY) - 1} bytes, {len(BODY)} are expected"):
        fetch(hub.serve("/x", BODY[:-1]))


def test_more_bytes_than_expected_are_never_written(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", BODY + b"more", ranges="no", no_length=True)
    with pytest.raises(HashMismatch, match="more than the expected"):
        fetch(url)
    assert fetch.part.stat().st_size <= len(BODY)


def test_an_html_page_is_called_one(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", b"<!doctype html><html>sign in</html>", content_type="text/html; charset=utf-8")
    with pytest.raises(NetworkError, match="HTML page"):
        fetch(url, size=0, sha256="")


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_a_passing_fault_is_tried_again(hub: FakeHub, fetch: Fetcher, status: int):
    assert fetch(hub.serve("/x", BODY, status=[status])) == BODY


def test_a_fault_that_stays_ends_after_the_tries(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", BODY, status=[503] * 50)
    with pytest.raises(NetworkError, match="HTTP 503; gave up after 3 tries"):
        fetch(url)
    assert len(hub.asked) == 3


def test_a_long_retry_after_ends_the_transfer_and_says_so(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", BODY, status=[429] * 5, status_headers={"Retry-After": "3600"})
    with pytest.raises(NetworkError, match="asks to wait 3600 s"):
        fetch(url)
    assert len(hub.asked) == 1


def test_retry_after_counts_before_the_own_wait(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", BODY, status=[503], status_headers={"Retry-After": "1"})
    fetch(url)
    assert any("next try in 1.0 s" in text for text in fetch.said)


@pytest.mark.parametrize(("value", "seconds"), [("7", 7.0), ("", 0.0), ("soon", 0.0), ("-5", 0.0),
                         ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0), ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0)])  # fmt: skip
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float):
    assert retry_after(value, now=10.0) == seconds


@pytest.mark.parametrize(("status", "kind"), [(401, AuthError), (403, AuthError), (404, NotFound), (418, NetworkError)])
def test_a_refusal_is_not_tried_again(hub: FakeHub, fetch: Fetcher, status: int, kind: type[Exception]):
    url = hub.serve("/x", BODY, status=[status])
    with pytest.raises(kind):
        fetch(url)
    assert len(hub.asked) == 1


def test_a_redirect_to_another_host_carries_no_token(hub: FakeHub, fetch: Fetcher):
    with FakeHub() as storage:
        storage.serve("/blob", BODY, etag='"v1"')
        url = hub.serve("/x", redirect=storage.url + "/blob")
        assert fetch(url, auth={"Authorization": "Bearer secret"}) == BODY
        assert hub.asked[0].headers["authorization"] == "Bearer secret"
        assert all("authorization" not in a.headers for a in storage.asked)


def test_a_redirect_on_the_same_host_keeps_the_token(hub: FakeHub, fetch: Fetcher):
    hub.serve("/blob", BODY, etag='"v1"', token="secret")
    url = hub.serve("/x", redirect="/blob")
    assert fetch(url, auth={"Authorization": "Bearer secret"}) == BODY


def test_a_signed_link_that_ran_out_is_asked_for_again(hub: FakeHub, fetch: Fetcher):
    with FakeHub() as storage:
        storage.serve("/old", BODY, etag='"v1"')
        storage.serve("/new", BODY, etag='"v1"')
        url = hub.serve("/x", redirect=storage.url + "/old")
        served = storage.served["/old"]

        def tick(done: int, _total: int) -> None:
            if done and not served.status:
                served.status = [403] * 1000
                hub.served["/x"].redirect = storage.url + "/new"

        how = TransferOptions(1, 8_000_000, QUICK.patience)
        Transfer(fetch.client, Remote(url, "x.gguf", len(BODY)), fetch.part, how, tick, lambda *_: None).run()
        assert fetch.part.read_bytes() == BODY
        assert storage.requests("/new")


def test_redirects_in_a_circle_end(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", redirect="/x")
    with pytest.raises(NetworkError, match="redirects"):
        fetch(url)


def test_a_redirect_to_something_that_is_no_web_address_is_refused(hub: FakeHub, fetch: Fetcher):
    with pytest.raises(NetworkError, match="not a web address"):
        fetch(hub.serve("/x", redirect="file:///etc/passwd"))


def test_a_window_of_a_file_is_fetched_alone(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", b"a" * 1000 + BODY + b"z" * 1000, etag='"v1"')
    assert fetch(url, offset=1000, window=len(BODY), sha256="crc") == BODY


def test_a_full_disk_keeps_the_journal_and_says_how_much(hub: FakeHub, fetch: Fetcher, monkeypatch: pytest.MonkeyPatch):
    url = hub.serve("/x", BODY, etag='"v1"')
    real, written = os.pwrite, 0

    def pwrite(handle: int, data: bytes, position: int) -> int:
        nonlocal written
        written += len(data)
        if written > 1_500_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, data, position)

    monkeypatch.setattr(journal.os, "pwrite", pwrite)
    with pytest.raises(OutOfMemory, match="no space left") as caught:
        fetch(url)
    monkeypatch.undo()
    assert caught.value.exit_code == 7
    assert good_bytes(fetch.part) == caught.value.details["kept_bytes"] > 500_000
    hub.asked.clear()
    assert fetch(url) == BODY
    assert sum(a.range == "bytes=0-0" for a in hub.asked) == 1


def test_no_secret_of_an_address_reaches_the_journal(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", BODY, etag='"v1"').replace("http://", "http://user:password@") + "?signature=hush"
    fetch(url)
    text = record_path(fetch.part).read_text()
    assert "password" not in text
    assert "hush" not in text


def test_the_rate_stays_under_its_limit(hub: FakeHub, fetch: Fetcher):
    import time

    url = hub.serve("/x", BODY, etag='"v1"')
    began = time.monotonic()
    fetch(url, TransferOptions(3, 6_000_000, QUICK.patience))
    assert time.monotonic() - began > 0.35  # 3 MB at 6 MB/s, less the first blocks


def test_another_mirror_of_the_same_hash_goes_on(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", BODY, etag='"v1"')
    kept = keep_half(fetch, hub, url, "/x")
    with FakeHub() as mirror:
        assert fetch(mirror.serve("/y", BODY, etag='"other"')) == BODY
        assert not any(a.range == "bytes=0-999" for a in mirror.asked)
        assert f"bytes={kept}-" in " ".join(a.range for a in mirror.asked)


def test_another_address_without_a_hash_begins_anew(hub: FakeHub, fetch: Fetcher):
    url = hub.serve("/x", BODY, etag='"v1"')
    keep_half(fetch, hub, url, "/x", sha256="")
    other = gguf_like(len(BODY), seed=3)
    assert fetch(hub.serve("/y", other, etag='"v1"'), sha256="") == other
