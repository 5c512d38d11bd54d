"""The error tree. Imports nothing.

    LlmrunError              1   500
    |- UsageError            2   400   wrong flags, wrong values
    |- NotFound              3   404   model, file, variant or session
    |- AuthError             4   401   token missing, gated repository
    |- NetworkError          5   502   DNS, TLS, proxy, mirror, time-out; needed but offline
    |- IntegrityError        6   500   damaged or altered data
    |  |- CorruptFile                  malformed GGUF or safetensors, missing shard
    |  `- HashMismatch
    |- OutOfMemory           7   503   memory or disk
    |- DeviceError           8   500   no usable device, kernel build, driver
    |- ServerError           9   502   cannot reach a server, port in use, key refused
    |- CheckFailed          10   500   a check or a comparison failed
    `- RequestRefused       11   400   refused or cut
       |- ContextExceeded
       |- QueueFull                503
       `- BadSchema

The first number is the exit code, the second the HTTP status. The text says what failed and the numbers; `hint` says
what to try next. `details` holds the same numbers for machines (JSON output, error bodies).
"""

from __future__ import annotations

from typing import Any


class LlmrunError(Exception):
    """Base of every error that a user may see."""

    exit_code = 1
    http_status = 500
    code = "error"

    def __init__(self, message: str, hint: str = "", details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, Any] = details or {}


class UsageError(LlmrunError):
    """A flag, a value or a request field is wrong."""

    exit_code, http_status, code = 2, 400, "usage"


class NotFound(LlmrunError):
    """A model, file, variant or session does not exist."""

    exit_code, http_status, code = 3, 404, "not_found"


class AuthError(LlmrunError):
    """A token is missing, lacks access, or a licence was not accepted."""

    exit_code, http_status, code = 4, 401, "auth"


class NetworkError(LlmrunError):
    """A host could not be reached or answered wrongly; or the network is needed but switched off."""

    exit_code, http_status, code = 5, 502, "network"


class IntegrityError(LlmrunError):
    """Data is damaged, altered or incomplete."""

    exit_code, http_status, code = 6, 500, "integrity"


class CorruptFile(IntegrityError):
    """A model file is malformed. `details` may name file, offset and tensor."""

    code = "corrupt_file"


class HashMismatch(IntegrityError):
    """A file's sha256 or size differs from the expected one."""

    code = "hash_mismatch"


class OutOfMemory(LlmrunError):
    """Not enough memory or disk."""

    exit_code, http_status, code = 7, 503, "out_of_memory"


class DeviceError(LlmrunError):
    """No usable device, a driver fault, or a kernel that does not build."""

    exit_code, http_status, code = 8, 500, "device"


class ServerError(LlmrunError):
    """A server cannot be reached, its port is taken, or it refused the key."""

    exit_code, http_status, code = 9, 502, "server"


class CheckFailed(LlmrunError):
    """A check or a comparison did not pass."""

    exit_code, http_status, code = 10, 500, "check_failed"


class RequestRefused(LlmrunError):
    """The request cannot be carried out as asked."""

    exit_code, http_status, code = 11, 400, "refused"


class ContextExceeded(RequestRefused):
    """The prompt is longer than the context. `details`: n_prompt_tokens, n_ctx."""

    code = "context_length_exceeded"


class QueueFull(RequestRefused):
    """Too many sequences wait. `details`: waiting, max_queue."""

    http_status, code = 503, "queue_full"


class BadSchema(RequestRefused):
    """A JSON schema or grammar is invalid or not supported."""

    code = "bad_schema"
