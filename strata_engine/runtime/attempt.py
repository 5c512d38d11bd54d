"""The engine thread's one catch-all: what fails for one sequence, or in one drafter, must not end the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from strata_engine.errors import LlmrunError

log = logging.getLogger(__name__)


def attempt(action: Callable[..., Any], *args: Any) -> tuple[Any, LlmrunError | None]:
    """(result, None) or (None, error). What is not an error of ours is logged with its traceback and wrapped."""
    try:
        return action(*args), None
    except LlmrunError as error:
        return None, error
    except Exception as error:  # noqa: BLE001 - a sink, a reader, a drafter or a kernel must not end the loop
        log.exception("caught in the engine's thread")
        failure = LlmrunError(f"internal error: {type(error).__name__}: {error}", hint="please report this")
        failure.__cause__ = error
        return None, failure
