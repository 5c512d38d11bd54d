"""Flags of serve beside the shared load group, and what they amount to: an address, keys and server options."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata_cli.address import Address, parse_address
from strata_engine.errors import NotFound, UsageError
from strata_engine.units import parse_seconds

if TYPE_CHECKING:
    from strata_cli.app import App
    from strata_cli.server.options import ServerOptions

_WHERE, _WHO, _HOW = "Address", "Access", "Requests"


def _where(*names: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_WHERE, **more)


def _who(*names: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_WHO, **more)


def _how(*names: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_HOW, **more)


@dataclass(frozen=True)
class PlaceToServe:
    """Where to listen."""

    host: Annotated[str | None, _where("--host", metavar="HOST", help="Address to listen on [127.0.0.1]")] = None
    port: Annotated[
        int | None, _where("--port", min=0, max=65535, metavar="N", help="Port; 0 = any free one [8080]")
    ] = None
    unix: Annotated[str | None, _where("--unix", metavar="PATH", help="Listen on a socket file in place of a port")] = (
        None
    )
    tls_key: Annotated[str | None, _where("--tls-key", metavar="FILE", help="TLS private key (PEM)")] = None
    tls_cert: Annotated[str | None, _where("--tls-cert", metavar="FILE", help="TLS certificate chain (PEM)")] = None
    api_prefix: Annotated[str, _where("--api-prefix", metavar="PATH", help="Put all routes below this path")] = ""

    def __post_init__(self) -> None:
        if self.unix and (self.host is not None or self.port is not None):
            raise UsageError("--unix does not go with --host or --port")
        if (self.tls_key is None) != (self.tls_cert is None):
            raise UsageError("--tls-key and --tls-cert go together")
        if self.api_prefix and not re.fullmatch(r"/?[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*/?", self.api_prefix):
            raise UsageError(f"--api-prefix {self.api_prefix}: not a path", "for example /llm")

    @property
    def prefix(self) -> str:
        """With a slash in front and none at the end; "" for none."""
        bare = self.api_prefix.strip("/")
        return f"/{bare}" if bare else ""

    @property
    def tls(self) -> tuple[str, str] | None:
        """Key and certificate files, checked. Raises NotFound, UsageError."""
        if self.tls_key is None or self.tls_cert is None:
            return None
        import ssl

        for flag, file in (("--tls-key", self.tls_key), ("--tls-cert", self.tls_cert)):
            if not Path(file).is_file():
                raise NotFound(f"{flag}: no such file: {file}")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key, lambda: "")
        except (ssl.SSLError, OSError) as error:
            raise UsageError(f"--tls-key and --tls-cert are no usable pair: {error}") from error
        return self.tls_key, self.tls_cert


@dataclass(frozen=True)
class AccessFlags:
    """Who may call."""

    api_key: Annotated[
        list[str] | None, _who("--api-key", metavar="KEY", help="Key that clients must send (repeat)")
    ] = None
    api_key_file: Annotated[str | None, _who("--api-key-file", metavar="FILE", help="File of keys, one a line")] = None
    cors_origin: Annotated[
        list[str] | None, _who("--cors-origin", metavar="ORIGIN", help="Web origin that may call, * = any (repeat)")
    ] = None
    insecure_no_auth: Annotated[
        bool, _who("--insecure-no-auth", help="Allow an address others can reach without a key")
    ] = False

    def keys(self, app: App) -> tuple[str, ...]:
        """From --api-key, --api-key-file and LLMRUN_API_KEY. Raises NotFound, UsageError for an unusable key."""
        found = list(self.api_key or ())
        if self.api_key_file is not None:
            path = Path(self.api_key_file)
            if not path.is_file():
                raise NotFound(f"--api-key-file: no such file: {path}")
            found += [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
            if not found:
                raise UsageError(f"--api-key-file {path}: no key in it")
        if not found and app.settings.get("api_key"):
            found = [str(app.settings.get("api_key"))]
        if not all(re.fullmatch(r"[\x21-\x7e]+", key) for key in found):
            raise UsageError("an API key must be printable ASCII without blanks")
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class RequestFlags:
    """How requests are treated."""

    max_queue: Annotated[int, _how("--max-queue", min=0, metavar="N", help="Most requests that wait; more get 503")] = (
        256
    )
    request_timeout: Annotated[
        str | None, _how("--request-timeout", metavar="TIME", help="End a request after this long")
    ] = None
    drain: Annotated[
        str, _how("--drain", metavar="TIME", help="How long open requests may go on after a signal to stop")
    ] = "30s"
    log_requests: Annotated[bool, _how("--log-requests", help="A line for each request on stderr")] = False
    metrics: Annotated[bool, _how("--metrics/--no-metrics", help="Offer /metrics")] = True
    any_model: Annotated[bool, _how("--any-model", help="Answer unknown model names with the (first) served model")] = (
        False
    )
    strict_api: Annotated[bool, _how("--strict-api", help="Refuse unknown body fields")] = False
    allow_image_urls: Annotated[
        bool, _how("--allow-image-urls", help="Fetch images that requests link to, from public addresses")
    ] = False

    def __post_init__(self) -> None:
        _seconds("--drain", self.drain)
        if self.request_timeout is not None and _seconds("--request-timeout", self.request_timeout) <= 0:
            raise UsageError("--request-timeout must be more than 0")


def address_of(app: App, place: PlaceToServe) -> Address:
    """--host and --port over LLMRUN_HOST and the config file; a host may be any spelling with a port or a URL."""
    text = place.host if place.host is not None else str(app.settings.get("host"))
    found = parse_address(text, int(app.settings.get("port")))
    port = found.port if place.port is None else place.port
    return replace(found, port=port, scheme="https" if place.tls_key else "http", prefix=place.prefix)


def options_of(app: App, place: PlaceToServe, access: AccessFlags, requests: RequestFlags) -> ServerOptions:
    """Raises UsageError for an open address without a key."""
    from strata_cli.server.options import ServerOptions

    keys = access.keys(app)
    address = address_of(app, place)
    local = bool(place.unix) or address.loopback
    if not local and not keys and not access.insecure_no_auth:
        text = f"others can reach {address.host}, and no API key is set"
        raise UsageError(text, "--api-key KEY, or --insecure-no-auth to serve anybody")
    timeout = requests.request_timeout
    return ServerOptions(
        keys=keys,
        origins=tuple(access.cors_origin or ()),
        check_host=local and not place.unix,
        prefix=place.prefix,
        metrics=requests.metrics,
        strict=requests.strict_api,
        image_links=requests.allow_image_urls,
        log_requests=requests.log_requests,
        request_timeout_s=None if timeout is None else _seconds("--request-timeout", timeout),
        drain_s=min(_seconds("--drain", requests.drain), 86400.0),
    )


def _seconds(flag: str, text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from error
