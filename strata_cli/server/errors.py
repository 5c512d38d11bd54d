"""Any error -> HTTP status and a body in OpenAI's shape. The numbers of an error travel in the same object."""

from __future__ import annotations

from typing import Any

from strata_engine.errors import LlmrunError, QueueFull, UsageError

_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 500: "server_error",
    502: "server_error", 503: "unavailable_error", 504: "timeout_error",
}  # fmt: skip
_RESERVED = frozenset(("message", "type", "param", "code"))


class HttpFault(LlmrunError):
    """A fault of the HTTP layer itself: its own status and code."""

    def __init__(self, status: int, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message, "", details)
        self.http_status, self.code = status, code


class BadField(UsageError):
    """A body field is wrong; `param` names it like messages.1.content."""

    code = "invalid_value"

    def __init__(self, param: str, message: str, code: str = "invalid_value") -> None:
        super().__init__(f"{param}: {message}", "", {"param": param})
        self.code = code


def unsupported(param: str, what: str) -> BadField:
    """A field or value this server knows but cannot do yet: refused, never ignored."""
    return BadField(param, f"{what} is not supported yet", "unsupported_value")


def shutting_down() -> HttpFault:
    """The server ended the sequence because it is going down."""
    return HttpFault(503, "shutting_down", "the server is shutting down")


def fail(error: LlmrunError) -> tuple[int, dict[str, Any]]:
    """Status and body of an error."""
    status = error.http_status
    inner: dict[str, Any] = {
        "message": error.message,
        "type": _TYPES.get(status, "invalid_request_error"),
        "param": error.details.get("param"),
        "code": error.code,
    }
    if error.hint:
        inner["hint"] = error.hint
    inner.update({k: v for k, v in error.details.items() if k not in _RESERVED})
    return status, {"error": inner}


def headers_of(error: LlmrunError) -> dict[str, str]:
    """Headers that go with an error: when to come back, how to log in, which methods exist."""
    if isinstance(error, QueueFull):
        return {"retry-after": "1"}
    if error.http_status == 503:
        return {"retry-after": "5"}
    if error.http_status == 401:
        return {"www-authenticate": "Bearer"}
    if error.http_status == 405:
        return {"allow": ", ".join(error.details.get("allow", ()))}
    return {}
