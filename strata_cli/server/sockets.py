"""Listening sockets, bound before any model is loaded so that a taken port is known at once."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from strata_cli.address import Address
from strata_engine.errors import ServerError, UsageError


def bind_tcp(address: Address) -> socket.socket:
    """Bound, not listening. Port 0 = any free one. Raises ServerError (exit 9) when the port is taken or forbidden."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise UsageError(f"--host {address.host}: {error.strerror}", "127.0.0.1 or ::1") from error
    family, kind, protocol, _, where = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(1)  # a bound socket that does not listen would let a second server bind too
    except OSError as error:
        listener.close()
        raise _refused(error, address) from error
    return listener


def bind_unix(path: Path) -> socket.socket:
    """A socket file for its owner only; a dead one is replaced. Raises ServerError when it is in use."""
    if not hasattr(socket, "AF_UNIX"):
        raise UsageError("--unix: this platform has no Unix sockets")
    _clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(1)
    except OSError as error:
        listener.close()
        raise ServerError(
            f"--unix {path}: {error.strerror or error}", "a shorter path in a directory of yours"
        ) from error
    return listener


def _clear(path: Path) -> None:
    if not path.is_socket():
        if path.exists():
            raise UsageError(f"--unix {path}: a file of this name exists and is no socket")
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise ServerError(f"the socket {path} is in use by a running server", "another --unix path")


def _refused(error: OSError, address: Address) -> ServerError:
    where = f"{address.host}:{address.port}"
    if error.errno == errno.EADDRINUSE:
        details = {"host": address.host, "port": address.port}
        who = _who_listens(address)
        return ServerError(
            f"port {address.port} on {address.host} is in use by {who}", "--port 0 for a free port", details
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return ServerError(f"{where}: not allowed to listen there", "a port of 1024 or more")
    return ServerError(f"{where}: {error.strerror or error}", "--host 127.0.0.1")


def _who_listens(address: Address) -> str:
    """llmrun says so in its `server` header."""
    import httpx

    try:
        reply = httpx.get(f"{address.url}/health", timeout=1.0, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL):
        return "another program"
    name = reply.headers.get("server", "")
    return "another llmrun server" if name.startswith("llmrun") else f"another program ({name[:40] or 'HTTP'})"
