"""pull: download models and what belongs to them. No torch at any point."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata_cli import completion_cache
from strata_cli.app import App
from strata_cli.fetch import pull_options
from strata_cli.progress import PullProgress, show_pull
from strata_engine.errors import NetworkError, NotFound, UsageError
from strata_engine.registry.reference import Reference, parse
from strata_engine.registry.resolve import Missing, not_registered, pullable, resolve
from strata_engine.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from strata_engine.registry.files import ModelFiles
    from strata_engine.registry.plan import PullOptions, PullPlan
    from strata_engine.registry.sources import Hubs


class From(Enum):
    """Kinds of sources a pull can be held to."""

    hf = "hf"
    modelscope = "modelscope"
    index = "index"


class Verify(Enum):
    """How files that are on the disk already are checked."""

    full = "full"
    size = "size"
    none = "none"


_KINDS = {From.hf: "huggingface", From.modelscope: "modelscope", From.index: "index"}


def pull(
    context: typer.Context,
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Catalog names, hub repositories or addresses")
    ],
    draft: Annotated[bool, typer.Option("--draft/--no-draft", help="Also the model's drafters")] = False,
    mmproj: Annotated[
        bool | None,
        typer.Option("--mmproj/--no-mmproj", help="Also the image projector of a GGUF repository (as it fits)"),
    ] = None,
    quant: Annotated[str, typer.Option(metavar="QUANT", help="Variant or quant, as after a colon")] = "",
    revision: Annotated[str, typer.Option(metavar="REVISION", help="Branch, tag or commit, as after an @")] = "",
    mirror: Annotated[str, typer.Option(metavar="URL", help="Hugging Face mirror, before HF_ENDPOINT")] = "",
    source: Annotated[From | None, typer.Option(help="Only this kind of source")] = None,
    connections: Annotated[int, typer.Option(metavar="N", min=1, max=64, help="Parts fetched at once")] = 8,
    limit_rate: Annotated[str, typer.Option(metavar="RATE", help="Most bytes a second, for example 5MB")] = "",
    verify: Annotated[Verify, typer.Option(help="How files that are here already are checked")] = Verify.size,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be fetched, fetch nothing")] = False,
) -> int:
    """Download a model and what belongs to it.

    An interrupted download goes on where it stopped when the same command runs again. Every file is checked against
    its sha256 before it counts.
    """
    app = App.of(context)
    for warning in app.catalog.warnings:
        app.output.warn(warning)
    options = _options(app, mirror, source, verify, mmproj)
    transfer = dataclasses.replace(options.transfer, connections=connections, limit_rate=_rate(limit_rate))
    run = _Run(app, dataclasses.replace(options, transfer=transfer), draft, dry_run)
    return run.all([_chosen(text, quant, revision) for text in models])


def _options(app: App, mirror: str, source: From | None, verify: Verify, mmproj: bool | None) -> PullOptions:
    only = _KINDS[source] if source else ""
    return dataclasses.replace(pull_options(app, mirror), only=only, verify=verify.value, mmproj=mmproj)


def _rate(text: str) -> float:
    try:
        rate = float(parse_bytes(text.removesuffix("/s"))) if text else 0.0
    except ValueError as error:
        raise UsageError(f"--limit-rate: {error}") from error
    if text and rate < 1:
        raise UsageError("--limit-rate must be above 0")
    return rate


def _chosen(text: str, quant: str, revision: str) -> Reference:
    reference = parse(text)
    for name, given in (("variant", quant), ("revision", revision)):
        if not given:
            continue
        there = getattr(reference, name)
        if there and there != given:
            raise UsageError(f"{text} already names the {name} {there}", "give it once")
        if reference.kind not in ("name", "hub"):
            raise UsageError(f"{text} has no {name}s", "leave the flag out")
        reference = dataclasses.replace(reference, **{name: given})
    return reference


class _Run:
    """One `llmrun pull`: all references over the same connections."""

    def __init__(self, app: App, options: PullOptions, draft: bool, dry_run: bool) -> None:
        self.app, self.options, self.draft, self.dry_run = app, options, draft, dry_run

    def all(self, references: list[Reference]) -> int:
        from strata_engine.registry.sources import Hubs

        hubs = Hubs(self.options.hubs, self.options.transfer, self.options.offline)
        records: list[dict[str, Any]] = []
        try:
            with show_pull(self.app.output) as report:
                for reference in references:
                    records += self._one(reference, hubs, report)
        except KeyboardInterrupt:
            self.app.output.note("stopped; what is fetched so far is kept, the same command goes on from there")
            raise
        finally:
            hubs.close()
            if not self.dry_run:
                completion_cache.refresh(self.app)
        self._print(records)
        return 0

    def _one(self, reference: Reference, hubs: Hubs, report: PullProgress) -> list[dict[str, Any]]:
        missing = pullable(reference, self.app.catalog, self.app.store)
        if missing is None:
            found = resolve(reference, self.app.catalog, self.app.store)
            return [_local_record(found)] if not isinstance(found, Missing) else []
        wanted = [missing, *self._drafters(missing)]
        return [self._record(one, hubs, report) for one in wanted]

    def _drafters(self, missing: Missing) -> list[Missing]:
        from strata_engine.registry.plan import drafter_missing

        if not self.draft or missing.entry is None or missing.variant is None:
            return []
        name = missing.variant.name
        fitting = [d for d in missing.entry.drafters if not d.variants or name in d.variants]
        if not fitting:
            self.app.output.note(f"{missing.name} has no drafter in the catalog")
        for built_in in (d for d in fitting if d.built_in):
            self.app.output.note(f"{missing.name}: drafter {built_in.name} is part of the model ({built_in.note})")
        return [drafter_missing(missing.entry, d, missing) for d in fitting if not d.built_in]

    def _record(self, missing: Missing, hubs: Hubs, report: PullProgress) -> dict[str, Any]:
        from strata_engine.registry.plan import make_plan
        from strata_engine.registry.pull import pull as fetch

        if missing.local_only:
            raise not_registered(missing)
        try:
            plan = make_plan(missing, self.options, hubs, report)
        except NetworkError as error:
            here = _here(self.app, missing)
            if here is None:
                raise
            self.app.output.warn(
                f"{missing.name} is on this disk; whether there is a newer one is not known: {error.message}"
            )
            return _local_record(here)
        if self.dry_run:
            return _plan_record(self.app, plan)
        before = report.downloaded_bytes
        files = fetch(plan, self.app.store, report, hubs)
        return {**_local_record(files), "downloaded_bytes": report.downloaded_bytes - before,
                "source": self._source(plan)}  # fmt: skip

    def _source(self, plan: PullPlan) -> str:
        found = self.app.store.find(plan.reference)
        return found.source if found else ""

    def _print(self, records: list[dict[str, Any]]) -> None:
        output = self.app.output
        if output.json_mode:
            output.data("llmrun.pull.v1", {"dry_run": self.dry_run, "models": records})
            return
        for record in records:
            if self.dry_run:
                rows = [[f["name"], format_bytes(f["size"]) if f["size"] else "?", f["state"]] for f in record["files"]]
                output.table(["FILE", "SIZE", "STATE"], rows, right=[1])
                output.line(
                    f"{record['reference']}: {format_bytes(record['needed_bytes'])} to fetch from {record['source']}"
                )
            elif not output.quiet:
                count = len(record["files"])
                size = format_bytes(record["size_bytes"])
                output.line(f"{record['reference']} is ready ({size}, {count} file{'s' if count > 1 else ''})")


def _here(app: App, missing: Missing) -> ModelFiles | None:
    """The model as it is on this disk already."""
    try:
        found = resolve(missing.reference, app.catalog, app.store)
    except NotFound:  # a drafter that was never pulled has no name yet
        return None
    return None if isinstance(found, Missing) else found


def _local_record(files: ModelFiles) -> dict[str, Any]:
    listed = [
        {"name": f.name, "role": f.role, "size": f.size, "sha256": f.sha256, "path": str(f.path)} for f in files.files
    ]
    return {"reference": files.reference, "name": files.name, "size_bytes": files.size_bytes, "downloaded_bytes": 0,
            "files": listed}  # fmt: skip


def _plan_record(app: App, plan: PullPlan) -> dict[str, Any]:
    from strata_engine.registry.journal import good_bytes
    from strata_engine.registry.pull import present

    have = present(plan, app.store)
    files: list[dict[str, Any]] = []
    needed = 0
    for file in plan.files:
        part = app.paths.partial / f"{file.sha256}.part"
        kept = good_bytes(part) if file.sha256 and file.path not in have else 0
        state = "here" if file.path in have else f"{format_bytes(kept)} kept" if kept else "to fetch"
        needed += 0 if file.path in have else max(0, file.size - kept)
        files.append({"name": file.name, "role": file.role, "size": file.size, "sha256": file.sha256, "state": state})
    return {"reference": plan.reference, "name": plan.name, "size_bytes": plan.total_bytes, "needed_bytes": needed,
            "source": plan.sources[0].label, "files": files}  # fmt: skip
