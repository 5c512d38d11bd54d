"""HTTP for the registry: one client, redirects that never carry a secret to another host, statuses turned into errors.

httpx is imported here only, and this module only when something is fetched.
"""

from __future__ import annotations

import email.utils
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from strata_engine.errors import AuthError, LlmrunError, NetworkError, NotFound
from strata_engine.registry.journal import without_secrets

_REDIRECTS = (301, 302, 303, 307, 308)
_RETRIED = (408, 425, 429, 500, 502, 503, 504, 522, 524)
_MOST_HOPS = 10
# Explains a refusal in the hub's own terms; None = no special meaning.
Explain = Callable[[int, Mapping[str, str]], LlmrunError | None]


class Retry(Exception):
    """A fault that may pass: the same request is worth another try, not before `after_s`."""

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


@dataclass(frozen=True)
class Target:
    """An address; `auth` headers go to its host only; `explain` words its refusals."""

    url: str
    auth: Mapping[str, str] | None = None
    explain: Explain | None = None


def make_client(connect_s: float = 10.0, read_s: float = 30.0, ca_file: str = "", connections: int = 8) -> httpx.Client:
    """A client with the system's and certifi's authorities, environment proxies, and loopback never proxied."""
    context = _tls(ca_file)
    timeout = httpx.Timeout(read_s, connect=connect_s)
    limits = httpx.Limits(max_connections=connections + 2, max_keepalive_connections=connections + 2)
    direct: dict[str, httpx.BaseTransport | None] = dict.fromkeys(
        ("all://localhost", "all://127.0.0.1", "all://[::1]"), None
    )
    headers = {"User-Agent": "llmrun", "Accept-Encoding": "identity"}
    return httpx.Client(verify=context, timeout=timeout, limits=limits, headers=headers, mounts=direct)


def _tls(ca_file: str) -> ssl.SSLContext:
    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as error:
            raise NetworkError(
                f"cannot read certificates from {ca_file}: {error}", "check REQUESTS_CA_BUNDLE"
            ) from error
    return context


@contextmanager
def opened(
    client: httpx.Client, target: Target, headers: Mapping[str, str], method: str = "GET"
) -> Iterator[httpx.Response]:
    """The answer after redirects, its body unread. Raises Retry for faults that may pass, NetworkError for others."""
    url, auth = _checked(target.url), dict(target.auth or {})
    hops: list[httpx.Response] = []
    for _ in range(_MOST_HOPS):
        with _transport_faults(url):
            response = client.send(client.build_request(method, url, headers={**headers, **auth}), stream=True)
        location = response.headers.get("location", "")
        if response.status_code not in _REDIRECTS or not location:
            response.extensions["hops"] = hops
            try:
                with _transport_faults(url):
                    yield response
            finally:
                response.close()
            return
        response.close()
        hops.append(response)
        following = url.join(location)
        if (following.scheme, following.host, following.port) != (url.scheme, url.host, url.port):
            auth = {}
        url = _checked(str(following))
    raise NetworkError(f"{without_secrets(target.url)}: more than {_MOST_HOPS} redirects")


@contextmanager
def _transport_faults(url: httpx.URL) -> Iterator[None]:
    where = url.host
    try:
        yield
    except httpx.TimeoutException as error:
        raise Retry(f"{where} does not answer ({type(error).__name__})") from error
    except (httpx.TransportError, httpx.DecodingError) as error:
        raise Retry(f"{where}: {_words(error)}") from error


def _words(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) < 200 else text[:200] + "..."


def _checked(url: str) -> httpx.URL:
    if not url.startswith(("http://", "https://")):
        raise NetworkError(f"not a web address: {without_secrets(url)}")
    try:
        return httpx.URL(url)
    except httpx.InvalidURL as error:
        raise NetworkError(f"not a usable address: {without_secrets(url)} ({error})") from error


def refuse(response: httpx.Response, target: Target) -> None:
    """Raise for a status that is no success. 416 and 2xx pass. Raises Retry, AuthError, NotFound, NetworkError."""
    status = response.status_code
    if status < 300 or status == 416:
        return
    shown = without_secrets(target.url)
    if target.explain is not None:
        explained = target.explain(status, response.headers)
        if explained is not None:
            raise explained
    if status in _RETRIED:
        raise Retry(f"{shown}: HTTP {status}", retry_after(response.headers.get("retry-after", "")))
    if status in (401, 403):
        raise AuthError(f"{shown}: access refused (HTTP {status})", "a token or an account with access")
    if status in (404, 410):
        raise NotFound(f"{shown}: no such file (HTTP {status})", "check the name")
    raise NetworkError(f"{shown}: HTTP {status}", "try again later, or another source")


def retry_after(value: str, now: float | None = None) -> float:
    """Seconds a Retry-After header asks for; 0 when there is none or it makes no sense."""
    if value.strip().isdigit():
        return float(value)
    try:
        moment = email.utils.parsedate_to_datetime(value).timestamp()
    except (TypeError, ValueError):
        return 0.0
    return max(0.0, moment - (time.time() if now is None else now))
