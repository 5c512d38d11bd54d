"""Reads one JSON answer of a hub, with a few tries."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx

from strata_engine.errors import NetworkError
from strata_engine.registry.journal import without_secrets
from strata_engine.registry.limits import Patience
from strata_engine.registry.web import Retry, Target, opened, refuse

_MOST_BYTES = 64 << 20


def get_text(client: httpx.Client, target: Target, headers: dict[str, str], patience: Patience) -> tuple[str, str]:
    """Body and media type. Raises NetworkError after the tries, and as `refuse`."""
    failures = 0
    while True:
        try:
            with opened(client, target, headers) as response:
                refuse(response, target)
                body = b""
                for block in response.iter_bytes():
                    body += block
                    if len(body) > _MOST_BYTES:
                        raise NetworkError(
                            f"{without_secrets(target.url)}: the answer is longer than {_MOST_BYTES} bytes"
                        )
                kind = response.headers.get("content-type", "").split(";")[0].strip().lower()
                return body.decode("utf-8", "replace"), kind
        except Retry as error:
            failures += 1
            if failures >= patience.tries or error.after_s > patience.longest_asked_s:
                raise NetworkError(f"{error}; gave up after {failures} tries", "try again later") from error
            time.sleep(patience.wait_s(failures, error.after_s))


def get_json(client: httpx.Client, target: Target, patience: Patience) -> Any:
    """The JSON document at an address. Raises NetworkError when the answer is something else."""
    text, kind = get_text(client, target, {"Accept": "application/json"}, patience)
    try:
        return json.loads(text)
    except ValueError as error:
        what = "an HTML page" if kind == "text/html" else f"{kind or 'something'} that is no JSON"
        raise NetworkError(f"{without_secrets(target.url)}: {what} came in place of the listing",
                           "a sign-in page or a proxy may be in the way") from error  # fmt: skip
