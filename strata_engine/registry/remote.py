"""One file on a server: what is asked for, and what the server says about it before bytes flow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx

from strata_engine.errors import NetworkError
from strata_engine.registry.web import Explain, Retry, Target, opened, refuse

_CONTENT_RANGE = re.compile(r"bytes\s+(?:(\d+)-(\d+)|\*)/(\d+|\*)", re.IGNORECASE)
_MODEL_ENDINGS = (".gguf", ".safetensors")


@dataclass(frozen=True)
class Remote:
    """A file, or a window of one (`offset`, `window` bytes). `size` and `sha256` are those of the wanted bytes.

    `size` 0 and `sha256` "" = not known. `auth` headers go to the URL's own host only.
    """

    url: str
    name: str
    size: int = 0
    sha256: str = ""
    auth: Mapping[str, str] = field(default_factory=dict)
    offset: int = 0
    window: int = 0
    explain: Explain | None = None

    @property
    def target(self) -> Target:
        """Where to ask."""
        return Target(self.url, self.auth, self.explain)


@dataclass(frozen=True)
class Span:
    """A Content-Range: first byte, one past the last, and the whole length (None = not said)."""

    start: int
    end: int
    total: int | None


@dataclass(frozen=True)
class Probe:
    """What one byte asked for told us. `size` counts the wanted bytes; None = not said.

    `if_range`: a strong ETag for If-Range, "" if none. `url`: where the redirects ended.
    """

    ranged: bool
    size: int | None
    identity: str
    if_range: str
    url: str


def content_range(response: httpx.Response) -> Span | None:
    """The Content-Range header; None when it is missing or malformed."""
    match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", "").strip())
    if not match:
        return None
    total = None if match[3] == "*" else int(match[3])
    start, end = (int(match[1]), int(match[2]) + 1) if match[1] else (0, 0)
    return Span(start, end, total) if end >= start else None


def is_encoded(response: httpx.Response) -> bool:
    """Whether the body is compressed in transit, so that its bytes are not the file's."""
    return response.headers.get("content-encoding", "identity").lower() not in ("", "identity")


def probe(client: httpx.Client, remote: Remote) -> Probe:
    """Ask for the first wanted byte: length, version, and whether ranges work. Raises Retry and as `refuse`."""
    headers = {"Range": f"bytes={remote.offset}-{remote.offset}"}
    with opened(client, remote.target, headers) as response:
        refuse(response, remote.target)
        _refuse_page(response, remote)
        span = content_range(response)
        identity, strong = _identity(response)
        url = str(response.url)
        if response.status_code == 416:
            return Probe(False, _empty(span.total if span else None, remote), identity, strong, url)
        if (
            response.status_code == 206
            and span is not None
            and span.start == remote.offset
            and not is_encoded(response)
        ):
            return Probe(True, _wanted(span.total, remote), identity, strong, url)
        length = response.headers.get("content-length", "")
        known = int(length) if response.status_code == 200 and length.isdigit() and not is_encoded(response) else None
        if known == 0:
            _empty(0, remote)
        return Probe(False, known, identity, strong, url)


def _empty(total: int | None, remote: Remote) -> int:
    """0 for a file that may be empty. Raises Retry for one that should hold something."""
    if total != 0 or remote.size or remote.window or remote.name.lower().endswith(_MODEL_ENDINGS):
        raise Retry(f"{remote.name}: the server has {'an empty file' if total == 0 else 'too few bytes of it'}")
    return 0


def _wanted(total: int | None, remote: Remote) -> int | None:
    if not remote.window:
        return total
    if total is not None and total < remote.offset + remote.window:
        raise NetworkError(f"{remote.name}: {remote.offset + remote.window} bytes are needed, the server has {total}")
    return remote.window


def _identity(response: httpx.Response) -> tuple[str, str]:
    """The version of the file, and a strong ETag of the final host. A hub's own hash beats its storage's ETag."""
    etag = response.headers.get("etag", "")
    strong = etag if etag.startswith('"') else ""
    for hop in (*response.extensions.get("hops", ()), response):
        linked = hop.headers.get("x-linked-etag", "").strip('"')
        if linked:
            return linked, strong
    return etag or response.headers.get("last-modified", ""), strong


def _refuse_page(response: httpx.Response, remote: Remote) -> None:
    kind = response.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml") and remote.name.lower().endswith(_MODEL_ENDINGS):
        raise page_error(remote.name, response.url.host)


def page_error(name: str, host: str) -> NetworkError:
    """The error for a web page in place of a model."""
    return NetworkError(f"{name}: {host} sent an HTML page in place of the file",
                        "a sign-in page or a proxy may be in the way: open the address in a browser")  # fmt: skip


def read_range(client: httpx.Client, remote: Remote, start: int, end: int) -> bytes:
    """Bytes [start, end) of a small piece. Raises Retry, NetworkError and as `refuse`."""
    with opened(client, remote.target, {"Range": f"bytes={start}-{end - 1}"}) as response:
        refuse(response, remote.target)
        span = content_range(response)
        if (
            response.status_code != 206
            or span is None
            or (span.start, span.end) != (start, end)
            or is_encoded(response)
        ):
            raise NetworkError(f"{remote.name}: the server did not send bytes {start} to {end - 1}")
        data = response.read()
    if len(data) != end - start:
        raise Retry(f"{remote.name}: {len(data)} of {end - start} bytes came")
    return data
