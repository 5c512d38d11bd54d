"""cache: what lies on disk, what of it nobody needs, and whether all of it is still what it was."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata_cli.app import App
from strata_cli.completion_cache import refresh
from strata_engine.errors import HashMismatch, NotFound, UsageError
from strata_engine.units import format_bytes, parse_seconds

if TYPE_CHECKING:
    from strata_engine.registry.housekeeping import CacheItem, Problem
    from strata_engine.registry.manifest import Manifest

cache = typer.Typer(add_completion=False, rich_markup_mode=None, help="List, check or clean downloaded files.")


@cache.command("ls")
def list_items(context: typer.Context) -> None:
    """List models, unfinished downloads, and files that nobody needs."""
    from strata_engine.registry.housekeeping import list_cache

    app = App.of(context)
    items = list_cache(app.store)
    total = sum(item.size_bytes for item in items)
    if app.output.json_mode:
        app.output.data("llmrun.cache.v1", {"items": [_record(i) for i in items], "total_bytes": total})
        return
    rows = [[i.kind, i.name, format_bytes(i.size_bytes), _date(i.modified), i.note] for i in items]
    app.output.table(("KIND", "NAME", "SIZE", "MODIFIED", "NOTE"), rows, right=(2,))
    app.output.note(f"{len(items)} items, {format_bytes(total)} (a file that two models share counts twice)")


@cache.command("prune")
def prune_items(
    context: typer.Context,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="Only what is older (30d, 12h)", show_default=False)
    ] = "0",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, remove nothing")] = False,
) -> None:
    """Remove unfinished downloads and files that no model uses. Models stay."""
    from strata_engine.registry.housekeeping import prune

    app = App.of(context)
    done = prune(app.store, _age(older_than), dry_run)
    if app.output.json_mode:
        app.output.data("llmrun.cache.prune.v1", {"dry_run": dry_run, "freed_bytes": done.freed_bytes,
                        "items": [_record(i) for i in done.items], "kept": list(done.kept)})  # fmt: skip
        return
    verb = "would remove" if dry_run else "removed"
    for item in done.items:
        app.output.line(f"{verb} {item.kind} {item.name} ({format_bytes(item.size_bytes)})")
    for reason in done.kept:
        app.output.warn(reason)
    app.output.note(f"{format_bytes(done.freed_bytes)} {'would be freed' if dry_run else 'freed'}")


def _age(text: str) -> float:
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise UsageError(f"--older-than: {error}") from error
    if seconds == float("inf"):
        raise UsageError("--older-than -1: nothing is that old", "30d, 12h or 0")
    return seconds


@cache.command("verify")
def verify_items(
    context: typer.Context,
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[LOCAL]...", help="Models to check; without one all of them")
    ] = None,
    drop: Annotated[
        bool, typer.Option("--drop", help="Remove damaged files, so that a pull fetches them again")
    ] = False,
) -> None:
    """Hash every downloaded file and compare. Ends with 6 when one is damaged or missing."""
    from strata_engine.registry.housekeeping import drop_damaged, verify_all

    app = App.of(context)
    wanted = _manifests(app, models or [])
    for found in wanted:
        app.output.detail(f"checking {found.reference} ({format_bytes(found.size_bytes)})")
    problems = verify_all(app.store, wanted)
    dropped = [str(p) for p in drop_damaged(app.store, problems)] if drop else []
    if dropped:
        refresh(app)
    if app.output.json_mode and not problems:
        app.output.data("llmrun.cache.verify.v1", {"models": [m.reference for m in wanted], "problems": []})
    elif not problems:
        app.output.line(f"{len(wanted)} model{'' if len(wanted) == 1 else 's'} checked, no damage")
    else:
        _fail(app, problems, dropped)


def _manifests(app: App, names: Sequence[str]) -> list[Manifest]:
    every = app.store.manifests()
    if not names:
        return every
    found: list[Manifest] = []
    for name in names:
        matching = [m for m in every if name.lower() in (m.reference.lower(), m.base.lower(), m.name.lower())]
        if not matching:
            raise NotFound(f"{name} is not downloaded", "llmrun cache ls")
        found += [m for m in matching if m not in found]
    return found


def _fail(app: App, problems: Sequence[Problem], dropped: list[str]) -> None:
    details: dict[str, Any] = {"problems": [{**vars(p), "path": str(p.path)} for p in problems], "dropped": dropped}
    if not app.output.json_mode:
        for problem in problems:
            app.output.line(f"{problem.reference}: {problem.file}: {problem.text}")
    names = " ".join(dict.fromkeys(p.reference for p in problems))
    hint = (
        f"llmrun pull {names}"
        if dropped or all(p.what == "missing" for p in problems)
        else "llmrun cache verify --drop"
    )
    raise HashMismatch(f"{len(problems)} damaged or missing file{'' if len(problems) == 1 else 's'}", hint, details)


@cache.command("path")
def show_paths(context: typer.Context) -> None:
    """Print where models, unfinished downloads and settings lie."""
    app = App.of(context)
    places = {"models": app.paths.models, "cache": app.paths.cache, "partial": app.paths.partial,
              "config": app.paths.config, "data": app.paths.data, "state": app.paths.state}  # fmt: skip
    if app.output.json_mode:
        app.output.data("llmrun.cache.path.v1", {name: str(path) for name, path in places.items()})
        return
    app.output.table((), [[name, str(path)] for name, path in places.items()])


def _record(item: CacheItem) -> dict[str, Any]:
    return {**vars(item), "path": str(item.path)}


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""
