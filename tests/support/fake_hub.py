"""A small HTTP server that behaves like a hub, an index, or a bad one: each file has faults of its own choosing.

Faults are used up: a list such as `status=[503, 429]` answers the first two requests, then the file is served.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import threading
import time
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00"


@dataclass
class Served:
    """One address. `ranges`: yes | no | wrong-start | early-start | no-header. `drop_after`: bytes before each cut."""

    body: bytes = b""
    etag: str = ""
    ranges: str = "yes"
    content_type: str = "application/octet-stream"
    compressed: bool = False
    status: list[int] = field(default_factory=list)
    status_headers: dict[str, str] = field(default_factory=dict)
    drop_after: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    redirect: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    token: str = ""
    rate: float = 0.0
    silent: bool = False
    no_length: bool = False


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    method: str
    path: str
    headers: dict[str, str]

    @property
    def range(self) -> str:
        """The Range header."""
        return self.headers.get("range", "")


class FakeHub:
    """Use as a context manager; `url` is its address."""

    def __init__(self) -> None:
        self.served: dict[str, Served] = {}
        self.asked: list[Asked] = []
        self.over = threading.Event()
        self.lock = threading.Lock()
        hub = self

        class Handler(_Handler):
            owner = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> FakeHub:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self, path: str, body: bytes = b"", **faults) -> str:
        """Serve a body at a path; returns its address."""
        self.served[path] = Served(body, **faults)
        return self.url + path

    def repository(self, repo: str, files: dict[str, bytes], small: tuple[str, ...] = (), **faults) -> None:
        """A Hugging Face repository: listing and files. Files of `small` are listed without a sha256."""
        siblings = []
        for path, body in files.items():
            sha = hashlib.sha256(body).hexdigest()
            entry: dict[str, object] = {"rfilename": path, "size": len(body), "blobId": "0" * 40}
            if path not in small:
                entry["lfs"] = {"sha256": sha, "size": len(body)}
            siblings.append(entry)
            self.serve(f"/{repo}/resolve/{COMMIT}/{path}", body, etag=f'"{sha}"', **faults)
        listing = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
        self.serve(f"/api/models/{repo}", b"{}", content_type="application/json", token=faults.get("token", ""))
        for revision in ("main", COMMIT):
            address = f"/api/models/{repo}/revision/{revision}"
            self.serve(address, listing, content_type="application/json", token=faults.get("token", ""))

    def package(self, name: str, version: str, members: dict[str, bytes], html: bool = False, **faults) -> str:
        """A wheel on a simple index; returns the index's address. Faults are those of the wheel file."""
        file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        data = wheel(members)
        self.serve(f"/files/{file}", data, **faults)
        page = f'<html><body><a href="/files/{file}#sha256={hashlib.sha256(data).hexdigest()}">{file}</a></body></html>'
        kind = "text/html"
        if not html:
            kind = "application/vnd.pypi.simple.v1+json"
            page = json.dumps({"name": name, "files": [{"filename": file, "url": f"../../files/{file}"}]})
        self.serve(f"/simple/{name}/", page.encode(), content_type=kind)
        return f"{self.url}/simple"

    def requests(self, path: str) -> list[Asked]:
        """What was asked of one path."""
        with self.lock:
            return [a for a in self.asked if a.path == path]


def wheel(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip file of these members."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    return stream.getvalue()


class _Handler(BaseHTTPRequestHandler):
    owner: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        headers = {k.lower(): v for k, v in self.headers.items()}
        with self.owner.lock:
            self.owner.asked.append(Asked(self.command, path, headers))
            found = self.owner.served.get(path)
            plan = None if found is None else _Plan.make(found, headers)
        if plan is None:
            self._send(404, {}, b"", with_body)
        elif plan.silent:
            self.owner.over.wait()
            self.close_connection = True
        else:
            self._send(plan.status, plan.headers, plan.body, with_body, plan)

    def _send(
        self, status: int, headers: dict[str, str], body: bytes, with_body: bool, plan: _Plan | None = None
    ) -> None:
        self.send_response(status)
        no_length = plan is not None and plan.no_length
        for name, value in headers.items():
            self.send_header(name, value)
        if no_length:
            self.close_connection = True
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not with_body:
            return
        cut = body if plan is None or plan.cut is None else body[: plan.cut]
        try:
            self._write(cut, plan.rate if plan else 0.0)
        except OSError:
            self.close_connection = True
        if len(cut) < len(body):
            self.close_connection = True

    def _write(self, data: bytes, rate: float) -> None:
        if not rate:
            self.wfile.write(data)
            return
        step = max(1, int(rate / 50))
        for at in range(0, len(data), step):
            if self.owner.over.is_set():
                return
            self.wfile.write(data[at : at + step])
            time.sleep(0.02)


@dataclass
class _Plan:
    status: int
    headers: dict[str, str]
    body: bytes
    cut: int | None = None
    rate: float = 0.0
    silent: bool = False
    no_length: bool = False

    @classmethod
    def make(cls, found: Served, asked: dict[str, str]) -> _Plan:
        if found.silent:
            return cls(200, {}, b"", silent=True)
        if found.token and asked.get("authorization") != f"Bearer {found.token}":
            return cls(401, dict(found.status_headers), b"")
        if found.status:
            return cls(found.status.pop(0), dict(found.status_headers), b"")
        if found.redirect:
            return cls(302, {"Location": found.redirect, **found.headers}, b"")
        body = found.bodies.pop(0) if found.bodies else found.body
        headers = {"Content-Type": found.content_type, **found.headers, **({"ETag": found.etag} if found.etag else {})}
        plan = cls(200, headers, body, rate=found.rate, no_length=found.no_length)
        if found.compressed:
            plan.body = gzip.compress(body)
            headers["Content-Encoding"] = "gzip"
        elif found.ranges != "no":
            plan._cut_range(found, asked)
        wanted = found.drop_after.pop(0) if found.drop_after and len(plan.body) > 1 else None
        plan.cut = wanted
        return plan

    def _cut_range(self, found: Served, asked: dict[str, str]) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked.get("range", ""))
        if not match or asked.get("if-range", found.etag) != found.etag:
            return
        total, start = len(self.body), int(match[1])
        end = min(int(match[2]) + 1 if match[2] else total, total)
        if start >= total:
            self.status, self.body = 416, b""
            self.headers["Content-Range"] = f"bytes */{total}"
            return
        if found.ranges == "wrong-start" and start:
            start = 0
        if found.ranges == "early-start" and start:
            start = max(0, start - 100)
        self.status, self.body = 206, self.body[start:end]
        if found.ranges != "no-header":
            self.headers["Content-Range"] = f"bytes {start}-{end - 1}/{total}"
