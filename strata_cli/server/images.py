"""Images in request bodies: data: URLs and bare base64 are read at once, http links only when the server allows it.

A link is fetched by address: the host is looked up once, every address must be public, and the connection goes to that
very address, so that no second look-up can lead inside. Redirects are followed by the same rules.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from urllib.parse import unquote_to_bytes, urljoin, urlsplit

from strata_cli.server.errors import BadField
from strata_engine.chat import ChatRequest, Message, Part
from strata_engine.units import format_bytes

MOST_BYTES = 32 << 20
MOST_SECONDS = 15.0
_MOST_HOPS = 3
_LINKS = ("http", "https")
_UNICAST = ipaddress.IPv6Network("2000::/3")
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")  # NAT64: leads to the IPv4 address in its last 32 bits

Lookup = Callable[[str, int], Iterable[str]]  # host, port -> addresses


def image_part(value: Any, where: str) -> Part:
    """The image of a body part: its URL, or an object with a `url`. A part without data is a link: see `fetched`.

    Raises BadField for anything that is neither inline nor an http link.
    """
    link = value.get("url") if isinstance(value, dict) else value
    if not isinstance(link, str) or not link:
        raise BadField(where, "is missing, or not a URL", "missing_required_parameter")
    scheme = link.partition(":")[0].lower() if ":" in link[:12] else ""
    if scheme == "data":
        return _inline(link, where)
    if not scheme:
        return Part("image", data=_decoded(link, where))
    if scheme not in _LINKS:
        raise BadField(where, f"{scheme} links are never fetched", "unsupported_value")
    return Part("image", text=link)


def _inline(link: str, where: str) -> Part:
    head, comma, body = link[5:].partition(",")
    if not comma:
        raise BadField(where, "a data: URL without data")
    kind, *options = head.split(";")
    data = _decoded(body, where) if "base64" in options else unquote_to_bytes(body)
    return Part("image", data=data, media_type=kind)


def _decoded(text: str, where: str) -> bytes:
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadField(where, f"not valid base64: {error}") from error
    if not data:
        raise BadField(where, "an image without bytes")
    return data


def holds_images(request: Any) -> bool:
    """Is it a conversation with an image?"""
    return isinstance(request, ChatRequest) and any(p.kind == "image" for m in request.messages for p in m.parts)


def fetched(request: ChatRequest, allowed: bool) -> ChatRequest:
    """The request with the bytes of all linked images. Blocks. Raises BadField."""
    messages = []
    for number, message in enumerate(request.messages):
        parts = (_with_data(part, f"messages.{number}.content.{at}", allowed) for at, part in enumerate(message.parts))
        messages.append(replace(message, parts=tuple(parts)) if _has_link(message) else message)
    return replace(request, messages=tuple(messages))


def _has_link(message: Message) -> bool:
    return any(part.kind == "image" and not part.data for part in message.parts)


def _with_data(part: Part, where: str, allowed: bool) -> Part:
    if part.kind != "image" or part.data:
        return part
    if not allowed:
        raise BadField(
            where,
            "http links are not fetched here (send a data: URL, or serve --allow-image-urls)",
            "unsupported_value",
        )
    data, kind = fetch(part.text, where)
    return Part("image", data=data, media_type=kind)


def public_addresses(host: str, port: int) -> list[str]:
    """Addresses of a host. Raises OSError when it has none, ValueError when one of them is not public."""
    found = list(dict.fromkeys(str(item[4][0]) for item in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
    if not found or not all(map(is_public, found)):
        raise ValueError(f"{host} is not a public address")
    return found


def is_public(address: str) -> bool:
    """Does an IP address belong to the open internet? Addresses that carry an IPv4 one are judged by that."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if (inner := ip.ipv4_mapped or ip.sixtofour) is not None:
            ip = inner
        elif ip in _TRANSLATED:
            ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        elif ip not in _UNICAST:
            return False
    return ip.is_global and not ip.is_multicast


def fetch(link: str, where: str, lookup: Lookup = public_addresses) -> tuple[bytes, str]:
    """Bytes and media type behind an http link. Raises BadField: not public, too slow, too large, no success."""
    import httpx

    deadline = time.monotonic() + MOST_SECONDS
    try:
        with httpx.Client(trust_env=False, follow_redirects=False, timeout=MOST_SECONDS / 3) as client:
            for _ in range(_MOST_HOPS):
                answer = _get(client, link, deadline, lookup)
                if isinstance(answer, tuple):
                    return answer
                link = urljoin(link, answer)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise BadField(where, f"the link could not be fetched: {error}") from error
    raise BadField(where, f"the link leads on more than {_MOST_HOPS} times")


def _get(client: Any, link: str, deadline: float, lookup: Lookup) -> tuple[bytes, str] | str:
    """The content, or where the server sends us."""
    parts = urlsplit(link)
    if parts.scheme not in _LINKS or not parts.hostname:
        raise ValueError("not an http link")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    address = next(iter(lookup(parts.hostname, port)))
    target = parts._replace(netloc=f"[{address}]:{port}" if ":" in address else f"{address}:{port}", fragment="")
    host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
    # unpacked bytes only: a few that unpack to gigabytes must not get past the limit
    headers = {"Host": host, "Accept-Encoding": "identity"}
    with client.stream("GET", target.geturl(), headers=headers, extensions={"sni_hostname": parts.hostname}) as answer:
        if answer.is_redirect:
            return answer.headers.get("location", "")
        if not answer.is_success:
            raise ValueError(f"status {answer.status_code}")
        found = bytearray()
        for chunk in answer.iter_raw():
            found += chunk
            if len(found) > MOST_BYTES:
                raise ValueError(f"more than {format_bytes(MOST_BYTES)}")
            if time.monotonic() > deadline:
                raise ValueError(f"not finished in {MOST_SECONDS:g} s")
        return bytes(found), answer.headers.get("content-type", "").partition(";")[0]
