"""ls, show, rm, cp: the models of this machine. No torch, no numpy, no network (but for show --remote)."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata_cli import completion_cache, inventory
from strata_cli.app import App
from strata_engine.errors import LlmrunError, NotFound, UsageError
from strata_engine.registry.catalog import near_names
from strata_engine.registry.local import config_only
from strata_engine.registry.reference import Reference, parse
from strata_engine.registry.resolve import Missing, not_registered, resolve
from strata_engine.units import format_bytes

if TYPE_CHECKING:
    from strata_engine.registry.manifest import Manifest


class Order(Enum):
    """Orders of `ls`."""

    by_name = "name"
    by_size = "size"
    by_date = "date"


def ls(
    context: typer.Context,
    pattern: Annotated[
        str | None, typer.Argument(metavar="[GLOB]", help="Only names that fit, for example 'qwen*'")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also models of the catalog that are not here")
    ] = False,
    sort: Annotated[Order, typer.Option(help="Order")] = Order.by_name,
    long: Annotated[bool, typer.Option("--long", "-l", help="Also where each came from")] = False,
) -> int:
    """List models. FIT says whether a model fits this machine: yes, tight (close other programs) or no."""
    app = App.of(context)
    for warning in app.catalog.warnings:
        app.output.warn(warning)
    found = inventory.ordered(inventory.rows(app, everything), sort.value)
    if pattern:
        found = inventory.matching(found, pattern)
    if app.output.quiet and not app.output.json_mode:
        for row in found:
            app.output.line(row.reference)
        return 0
    memory = inventory.machine_memory()
    if app.output.json_mode:
        models = [inventory.as_json(r, memory) for r in found]
        app.output.data("llmrun.ls.v1", {"memory_bytes": memory[0], "free_bytes": memory[1], "models": models})
    elif found:
        _table(app, found, memory, long or everything)
    else:
        app.output.note(_nothing(pattern, everything))
    return 0


def _nothing(pattern: str | None, everything: bool) -> str:
    if not pattern:
        return "no models yet: llmrun pull smollm2 (llmrun ls --all shows more)"
    return f"no model is called {pattern}" if everything else f"no downloaded model is called {pattern} (ls --all)"


def _table(app: App, found: Sequence[inventory.Row], memory: tuple[int, int], long: bool) -> None:
    headers = ["NAME", "VARIANT", "SIZE", "QUANT", "FIT", "MODIFIED", *(["STATE", "FROM"] if long else [])]
    lines: list[list[str]] = []
    for row in found:
        when = datetime.datetime.fromtimestamp(row.modified).strftime("%Y-%m-%d %H:%M") if row.modified else "-"
        name = f"{row.name} -> {row.target}" if row.target else row.name
        size = format_bytes(row.size_bytes) if row.size_bytes else "-"
        state = when if row.state != "incomplete" else "incomplete"
        line = [name, row.variant or "-", size, row.quant or "-", inventory.fit(row.need_bytes, memory), state]
        lines.append([*line, row.state, row.origin or "-"] if long else line)
    app.output.table(headers, lines, right=[2])


def show(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model, a file or a directory")],
    template: Annotated[bool, typer.Option("--template", help="The chat template")] = False,
    license_: Annotated[bool, typer.Option("--license", help="The licence")] = False,
    params: Annotated[bool, typer.Option("--params", help="Defaults for context and sampling")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="All tensors")] = False,
    metadata: Annotated[bool, typer.Option("--metadata", help="All metadata keys")] = False,
    files: Annotated[bool, typer.Option("--files", help="Files with absolute paths and sha256")] = False,
    system: Annotated[bool, typer.Option("--system", help="The system text of the catalog")] = False,
    remote: Annotated[bool, typer.Option("--remote", help="Files as its source lists them (uses the network)")] = False,
) -> int:
    """Show what a model is made of."""
    from strata_cli.shown import Sections, show_known, show_local, show_remote

    app = App.of(context)
    asked = Sections(template, license_, params, tensors, metadata, files, system)
    reference = parse(model)
    if remote:
        if asked.any:
            raise UsageError("--remote shows the source's files only", "leave the other flags out")
        return show_remote(app, reference)
    described = None if app.catalog.find(model) else config_only(model)
    found = described or resolve(reference, app.catalog, app.store)
    if not isinstance(found, Missing):
        for note in found.notes:
            app.output.note(note)
        return show_local(app, found, asked)
    if found.entry is None:
        raise NotFound(f"{found.name} is not on this disk", f"llmrun pull {model}, or llmrun show {model} --remote")
    if asked.any:
        if found.local_only:
            raise not_registered(found)
        raise NotFound(f"{found.name} is not on this disk", f"llmrun pull {model}")
    return show_known(app, found)


def rm(
    context: typer.Context,
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="Downloaded models or names of cp")
    ] = None,
    unused: Annotated[bool, typer.Option("--unused", help="Also files that no model needs any more")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, remove nothing")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also a model that the server has loaded")] = False,
) -> int:
    """Remove downloaded models. Files that another model uses are kept; paths of your own are never touched."""
    app = App.of(context)
    if not models and not unused:
        raise UsageError("no model named", "llmrun rm MODEL, or llmrun rm --unused")
    aliases = [m for m in models or [] if m in app.store.aliases()]
    gone = _unique([m for text in models or [] if text not in aliases for m in _downloaded(app, text)])
    if not force and not dry_run:
        _refuse_loaded(app, gone)
    if not dry_run:
        _confirm(app, [*aliases, *(f"{m.reference} ({format_bytes(m.size_bytes)})" for m in gone)])
    for name in () if dry_run else aliases:
        app.store.set_alias(name, None)
    freed, kept, items = 0, 0, []
    for found in gone:
        removal = app.store.remove(found, dry_run)
        freed, kept = freed + removal.freed_bytes, kept + len(removal.kept)
        items.append(
            {"reference": found.reference, "freed_bytes": removal.freed_bytes, "kept_files": len(removal.kept)}
        )
    if unused:
        freed += _prune(app, dry_run)
    if not dry_run:
        completion_cache.refresh(app)
    _say_removed(app, [*aliases, *(m.reference for m in gone)], items, freed, kept, dry_run)
    return 0


def _unique(found: list[Manifest]) -> list[Manifest]:
    return list({m.reference: m for m in found}.values())


def _downloaded(app: App, text: str) -> list[Manifest]:
    """Manifests that a reference names: one variant, or all of them. Raises NotFound with near names."""
    reference = parse(text)
    if reference.kind == "path":
        raise UsageError(f"{text} is a path of yours; rm removes downloaded models only", "remove it yourself")
    entry = app.catalog.find(reference.target) if reference.kind == "name" else None
    base = entry.name if entry else _base(reference)
    manifests = app.store.manifests()
    found = [m for m in manifests if m.base.lower() == base.lower() and _is_variant(m, reference.variant)]
    if not found:
        known = [*(m.reference for m in manifests), *(m.base for m in manifests), *app.store.aliases()]
        near = near_names(text.strip(), known)
        raise NotFound(f"{text} is not downloaded", ", ".join(near) or "llmrun ls", {"near": near})
    return found


def _base(reference: Reference) -> str:
    import dataclasses

    return dataclasses.replace(reference, variant="", revision="").normal


def _is_variant(found: Manifest, wanted: str) -> bool:
    return not wanted or found.variant.lower() == wanted.lower()


def _refuse_loaded(app: App, gone: list[Manifest]) -> None:
    if not gone or not app.paths.server_file.exists():
        return
    from strata_cli.client import find_server

    service = find_server(app)
    if service is None:
        return
    try:
        loaded = {m.reference.lower() for m in service.loaded()}
    except LlmrunError as error:
        app.output.warn(f"the running server does not say what it has loaded: {error.message}")
        return
    finally:
        service.close()
    busy = [m.reference for m in gone if m.reference.lower() in loaded]
    if busy:
        raise UsageError(f"{', '.join(busy)} is loaded by the running server", f"llmrun stop {busy[0]}, or --force")


def _confirm(app: App, names: Sequence[str]) -> None:
    if app.flags.yes or not names or not (sys.stdin.isatty() and app.output.stderr.isatty()):
        return
    app.output.stderr.write(f"remove {', '.join(names)}? [y/N] ")
    app.output.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was removed", "answer y, or give -y")


def _prune(app: App, dry_run: bool) -> int:
    from strata_engine.registry.housekeeping import prune

    result = prune(app.store, dry_run=dry_run)
    for text in result.kept:
        app.output.note(text)
    return result.freed_bytes


def _say_removed(
    app: App, names: Sequence[str], items: list[dict[str, Any]], freed: int, kept: int, dry_run: bool
) -> None:
    if app.output.json_mode:
        app.output.data(
            "llmrun.rm.v1", {"dry_run": dry_run, "removed": list(names), "models": items, "freed_bytes": freed}
        )
        return
    what = ", ".join(names) or "unused files"
    verb = "would be removed" if dry_run else "removed"
    app.output.line(
        f"{what} {verb}, {format_bytes(freed)} freed" if not dry_run else f"{what} {verb}: {format_bytes(freed)}"
    )
    if kept:
        app.output.note(
            f"{kept} file{'s' if kept > 1 else ''} kept, for another model uses {'them' if kept > 1 else 'it'}"
        )


def cp(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="MODEL", help="A model, a file or a directory")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name")],
) -> int:
    """Give a model another name; nothing is copied. Also gives a catalog model without a public source its files."""
    app = App.of(context)
    target = parse(name)
    if target.kind != "name" or target.variant or target.revision:
        raise UsageError(f"not a name: {name}", "letters, digits and . _ - without / : @")
    found = resolve(parse(source), app.catalog, app.store)
    if isinstance(found, Missing) and found.local_only:
        raise not_registered(found)
    meant = (
        str(Path(found.root)) if not isinstance(found, Missing) and found.root == found.reference else source.strip()
    )
    if meant.lower() == name.lower():
        raise UsageError(f"{name} is that name already", "another name")
    before = app.store.aliases().get(name)
    app.store.set_alias(name, meant)
    completion_cache.refresh(app)
    _say_named(app, name, meant, before)
    return 0


def _say_named(app: App, name: str, meant: str, before: str | None) -> None:
    if app.output.json_mode:
        app.output.data("llmrun.cp.v1", {"name": name, "target": meant, "before": before})
        return
    app.output.line(f"{name} -> {meant}" + (f" (was {before})" if before and before != meant else ""))
    entry = app.catalog.find(name)
    if entry is not None and any(s.kind != "local" for v in entry.variants for s in v.sources):
        app.output.note(f"{name} is a name of the catalog too; yours wins (llmrun rm {name} drops it)")
