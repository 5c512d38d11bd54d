"""Writes the names that a Tab offers (Paths.completion): call `refresh(app)` after pull, rm, cp or a change of aliases.

{"schema": 1, "models": {name: [variant, ...]}, "local": [reference, base or alias that is on this disk, ...]}
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from strata_engine.errors import LlmrunError

if TYPE_CHECKING:
    from strata_cli.app import App


def refresh(app: App) -> None:
    """Write the names anew; a read-only cache or a broken user file does not fail the command that calls this."""
    from strata_engine.registry import atomic

    with contextlib.suppress(OSError, LlmrunError):
        models = {
            name: [v.name for v in entry.variants] if len(entry.variants) > 1 else []
            for entry in app.catalog.entries.values()
            for name in entry.names
        }
        local = {text for m in app.store.manifests() for text in (m.base, m.reference)} | set(app.store.aliases())
        atomic.write_json(app.paths.completion, {"schema": 1, "models": models, "local": sorted(local)})
