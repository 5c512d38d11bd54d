"""A model's files on this disk, fetched first when they are not there: what run, chat, serve, bench and text share."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from strata_cli import completion_cache
from strata_cli.app import App
from strata_cli.hubsettings import hub_settings
from strata_cli.progress import show_pull
from strata_engine.errors import NetworkError
from strata_engine.registry.reference import parse
from strata_engine.registry.resolve import Missing, not_registered, resolve
from strata_engine.units import format_bytes

if TYPE_CHECKING:
    from strata_engine.registry.files import ModelFiles
    from strata_engine.registry.plan import PullOptions


def ensure_present(app: App, reference_text: str) -> ModelFiles:
    """The files of a model; `notes` of the result are for the caller to say.

    Raises NotFound for unknown and for unregistered local-only models, NetworkError when it would have to be fetched
    and the network is off, and what a pull raises.
    """
    reference = parse(reference_text)
    found = resolve(reference, app.catalog, app.store)
    if not isinstance(found, Missing):
        return found
    if found.local_only:
        raise not_registered(found)
    size = f" ({format_bytes(found.size_bytes)})" if found.size_bytes else ""
    if app.offline:
        raise NetworkError(f"{found.name} is not on this disk{size}, and the network is switched off",
                           f"llmrun pull {found.reference.text.strip()}   (without --offline)",
                           {"missing": found.name})  # fmt: skip
    app.output.note(f"{found.name} is not on this disk yet{size}: downloading it")
    fetch(app, found, pull_options(app))
    again = resolve(reference, app.catalog, app.store)
    return again if not isinstance(again, Missing) else fetch(app, found, pull_options(app))


def pull_options(app: App, mirror: str = "") -> PullOptions:
    """Options from environment and settings."""
    from strata_engine.registry.plan import PullOptions

    return PullOptions(hubs=hub_settings(app.env, mirror), offline=app.offline)


def fetch(app: App, missing: Missing, options: PullOptions) -> ModelFiles:
    """Pull with progress on this output; the names for completion are refreshed."""
    from strata_engine.registry.plan import make_plan
    from strata_engine.registry.pull import pull
    from strata_engine.registry.sources import Hubs

    output = app.output if app.output.mode == "text" else dataclasses.replace(app.output, mode="json")
    hubs = Hubs(options.hubs, options.transfer, options.offline)
    try:
        with show_pull(output) as report:
            files = pull(make_plan(missing, options, hubs, report), app.store, report, hubs)
    finally:
        hubs.close()
    completion_cache.refresh(app)
    return files
