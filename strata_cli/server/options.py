"""Settings of one server process, made once by the serve command."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerOptions:
    """How the HTTP side behaves; durations in seconds.

    keys               accepted API keys; empty = none needed
    origins            web origins besides loopback ones that may call; "*" = all
    check_host         refuse a Host header that is not loopback (against DNS rebinding; set on loopback binds)
    image_links        fetch images that a request links to (http, https; public addresses only)
    headers_after_s    a stream whose preparation takes longer than this gets its headers before it is accepted
    """

    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    check_host: bool = True
    prefix: str = ""
    metrics: bool = True
    strict: bool = False
    log_requests: bool = False
    body_limit_bytes: int = 64 << 20
    keep_alive_s: float = 15.0
    headers_after_s: float = 2.0
    request_timeout_s: float | None = None
    drain_s: float = 30.0
    image_links: bool = False
