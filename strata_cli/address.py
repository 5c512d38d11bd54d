"""Every spelling of a server address: host, host:port, :port, [v6]:port, a bare v6 address, a URL."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from strata_engine.errors import UsageError

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8080
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": DEFAULT_HOST}  # noqa: S104 - addresses to translate, not to bind


@dataclass(frozen=True)
class Address:
    """Where a server listens. `prefix`: path before all routes, "" or like /llm."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    scheme: str = "http"
    prefix: str = ""

    @property
    def url(self) -> str:
        """Base URL for a client; an any-address becomes loopback."""
        host = _ANY.get(self.host, self.host)
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}{self.prefix}"

    @property
    def loopback(self) -> bool:
        """Only this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """localhost, *.localhost, 127.0.0.0/8 or ::1."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Raises UsageError for a text that is no address."""
    text = text.strip()
    if "://" in text:
        return _from_url(text)
    if _is_v6(text):
        return Address(text, default_port)
    match = re.fullmatch(r"(\[[^\]]*\]|[^:\[\]/\s]*)(?::([0-9]{1,5}))?/?", text)
    if not match or not text:
        raise _wrong(text)
    return Address(_host(match[1], text), _port(match[2], default_port, text))


def _from_url(text: str) -> Address:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise _wrong(text) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _wrong(text)
    fallback = 443 if parts.scheme == "https" else 80
    path = parts.path.rstrip("/")
    return Address(parts.hostname, fallback if port is None else port, parts.scheme, path.removesuffix("/v1"))


def _host(text: str, whole: str) -> str:
    if text.startswith("["):
        if not _is_v6(text[1:-1]):
            raise _wrong(whole)
        return text[1:-1]
    return text or DEFAULT_HOST


def _port(text: str | None, default: int, whole: str) -> int:
    port = int(text) if text else default
    if port > 65535:
        raise _wrong(whole)
    return port


def _is_v6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _wrong(text: str) -> UsageError:
    return UsageError(f"not a server address: {text!r}", "127.0.0.1:8080, :8080, [::1]:8080 or http://host:8080")
