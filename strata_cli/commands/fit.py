"""fit: whether a model fits this machine, with what context, and which variant is the best that does.

Downloaded models are priced from their file headers, others from the catalog's figures; nothing is loaded or fetched.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata_backends.machine import memory_bytes
from strata_cli.app import App
from strata_cli.keys import KEYS
from strata_engine.errors import NotFound, OutOfMemory, UsageError
from strata_engine.registry.resolve import Missing
from strata_engine.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from strata_engine.config import EngineConfig
    from strata_engine.placement.traffic import Traffic
    from strata_engine.registry.entries import Entry, Variant
    from strata_engine.registry.files import ModelFiles

# Interpreter and libraries beside the model: 340 MB of a `run` of SmolLM2 that took 473 MB at its peak.
PROGRAM_BYTES = 350 * 10**6


@dataclass(frozen=True)
class Room:
    """Memory a model may take: free now, less the wanted margin and the program itself."""

    free_bytes: int
    margin_bytes: int

    @property
    def usable_bytes(self) -> int:
        """What is left for the model."""
        return max(0, self.free_bytes - self.margin_bytes - PROGRAM_BYTES)


def fit(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="Model; without one the default model")] = "",
    ctx: Annotated[str | None, typer.Option("--ctx", "-c", metavar="N|auto", help="Context in tokens")] = None,
    parallel: Annotated[int | None, typer.Option("--parallel", metavar="N", help=KEYS["parallel"].meaning)] = None,
    kv_type: Annotated[
        str | None, typer.Option("--kv-type", metavar="|".join(KEYS["kv_type"].choices), help=KEYS["kv_type"].meaning)
    ] = None,
    spec: Annotated[
        str | None, typer.Option("--spec", metavar="|".join(KEYS["spec"].choices), help="Count this drafter too")
    ] = None,
    draft: Annotated[str | None, typer.Option("--draft", metavar="MODEL", help=KEYS["draft"].meaning)] = None,
    margin: Annotated[str, typer.Option("--margin", metavar="SIZE", help="Memory to leave free (1GiB)")] = "0",
    card: Annotated[
        str, typer.Option("--card", metavar="NAME", help="Place it on this card of the table (rx-7900-xtx, h200, all)")
    ] = "",
    roofline: Annotated[
        bool, typer.Option("--roofline", help="Table of cards and models: bytes, floor and expected speed of a token")
    ] = False,
) -> int:
    """Say whether and how a model fits into this machine's memory, and where it would live with a GPU.

    Ends with 7 when it does not fit.
    """
    app = App.of(context)
    given = {"ctx": ctx, "parallel": parallel, "kv_type": kv_type, "spec": spec, "draft": draft}
    config = app.settings.override({k: v for k, v in given.items() if v is not None}).engine_config()
    if roofline:
        return _roofline(app, model, config, card)
    report = _report(app, model, config, Room(memory_bytes()[1], _margin(margin)), card)
    if app.output.json_mode:
        app.output.data("llmrun.fit.v1", report)
        failed = OutOfMemory.exit_code if report["supported"] else UsageError.exit_code
        return 0 if report["fits"] else failed
    _print(app, report)
    if report["fits"]:
        return 0
    if not report["supported"]:
        raise UsageError(
            f"this version cannot run {report['architecture']} models", "the figures are about memory only"
        )
    raise OutOfMemory(f"{report['model']} does not fit: {format_bytes(report['total_bytes'])} needed, "
                      f"{format_bytes(report['usable_bytes'])} usable", _hint(report))  # fmt: skip


def _margin(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"--margin: {error}") from error


def _found(app: App, model: str) -> ModelFiles | Missing:
    """The files of a model, or what the catalog knows of one that is not downloaded."""
    from strata_engine.registry.local import config_only
    from strata_engine.registry.reference import parse
    from strata_engine.registry.resolve import resolve

    default = app.catalog.default
    text = model or (default.name if default else "")
    if not text:
        raise UsageError("no model named, and the catalog has no default", "llmrun ls --all")
    described = None if app.catalog.find(text) else config_only(text)
    return described or resolve(parse(text), app.catalog, app.store)


def _roofline(app: App, model: str, config: EngineConfig, card: str) -> int:
    """The table of one model, or of all that the catalog has, on the cards named, else on all."""
    from strata_cli.roofline import DEFAULT_CONTEXT, assumptions, cards_named, print_roofline, roofline

    cards = cards_named(card)
    rows = roofline(_traffic_of(app, model, config), cards, config.context_tokens or DEFAULT_CONTEXT)
    if app.output.json_mode:
        about = {"cards": {one.key: asdict(one) for one in cards}, "assumptions": assumptions(cards)}
        app.output.data("llmrun.roofline.v1", {**about, "rows": rows})
    else:
        print_roofline(app.output, rows, cards)
    return 0


def _traffic_of(app: App, model: str, config: EngineConfig) -> dict[str, Traffic]:
    """Name -> bytes of a token. Files are read where there are some; without a model all of the catalog."""
    from strata_engine.placement.catalog_traffic import catalog_traffic

    known = catalog_traffic()
    if not model:
        return known
    found = _found(app, model)
    if not isinstance(found, Missing):
        return {found.reference: _traffic(found, config)}
    name = f"{found.entry.name}:{found.variant.name}" if found.entry and found.variant else model
    if name not in known:
        raise NotFound(f"{name} is not downloaded, and the table has no figures for it", f"llmrun pull {model}")
    return {name: known[name]}


def _traffic(files: ModelFiles, config: EngineConfig) -> Traffic:
    from strata_engine.models.planned import open_or_plan
    from strata_engine.placement.traffic import traffic

    source = open_or_plan(files)
    try:
        return traffic(source, config)
    finally:
        source.close()


def _placements(app: App, report: dict[str, Any], model: Traffic | None, card: str) -> list[dict[str, Any]]:
    """Where the parts would live on each card that is there, or that was named."""
    from strata_backends.probe import gpus
    from strata_cli.devices import place_of
    from strata_cli.roofline import DEFAULT_CONTEXT, place, spots
    from strata_engine.placement.across import WORKSPACE_BYTES

    found = spots(() if card else gpus(place_of(app)), card)
    if model is None:
        return []
    context = report.get("context_tokens", DEFAULT_CONTEXT)
    more = report.get("kv_bytes", 0) - model.kv_token_bytes * context
    workspace = report.get("workspace_bytes", WORKSPACE_BYTES)
    return [place(model, context, max(0, more), workspace, spot) for spot in found]


def _report(app: App, model: str, config: EngineConfig, room: Room, card: str) -> dict[str, Any]:
    from strata_engine.placement.catalog_traffic import catalog_traffic
    from strata_engine.registry.drafters import with_drafter

    found = _found(app, model)
    entry = found.entry if isinstance(found, Missing) else app.catalog.find(found.name)
    if not isinstance(found, Missing):
        found, config = with_drafter(found, config, app.catalog, app.store)
        for note in found.notes:
            app.output.warn(note)
        report = _from_files(found, config, room)
        moved = _traffic(found, config)
    elif found.entry is not None and found.variant is not None:
        report = _from_catalog(found.entry, found.variant, room)
        moved = catalog_traffic().get(report["model"])
    else:
        text = model or "the default model"
        raise NotFound(f"{text} is not downloaded, and the catalog has no figures for it", f"llmrun pull {text}")
    variants = _variants(app, entry, room) if entry else []
    fitting = [v for v in variants if v["fits"]]
    best = max(fitting, key=lambda v: v["weights_bytes"])["name"] if fitting else None
    shared = {"free_bytes": room.free_bytes, "margin_bytes": room.margin_bytes, "usable_bytes": room.usable_bytes}
    places = _placements(app, report, moved, card)
    about = {"program_bytes": PROGRAM_BYTES, "best_variant": best, "variants": variants, "placements": places}
    return {**report, **shared, **about}


def _from_files(files: ModelFiles, config: EngineConfig, room: Room) -> dict[str, Any]:
    from dataclasses import replace

    from strata_engine.models import GGUF, HUGGING_FACE, architecture_of
    from strata_engine.models.planned import open_or_plan
    from strata_engine.placement.estimate import estimate
    from strata_engine.runtime.defaults import default_context

    asked = config.context_tokens if config.context_tokens is not None else default_context(files.defaults)
    source = open_or_plan(files)
    try:
        architecture = architecture_of(source)
        supported = architecture in (GGUF if source.kind == "gguf" else HUGGING_FACE)
        priced = estimate(source, replace(config, context_tokens=asked), room.usable_bytes)
    finally:
        source.close()
    return {
        "model": files.reference,
        "basis": "files",
        "architecture": architecture,
        "supported": supported,
        "fits": priced.fits and supported,
        "weights_bytes": priced.weights_bytes - priced.drafter_bytes,
        "kv_bytes": priced.kv_bytes,
        "kv_token_bytes": priced.kv_token_bytes,
        "state_bytes": priced.state_bytes,
        "disk_bytes": priced.disk_bytes,
        "workspace_bytes": priced.workspace_bytes,
        "drafter_bytes": priced.drafter_bytes,
        "total_bytes": priced.total_bytes,
        "context_tokens": priced.context_tokens,
        "context_why": priced.context_why,
        "largest_context_tokens": priced.largest_context_tokens,
        "train_context_tokens": priced.train_context_tokens,
        "pool_tokens": priced.pool_tokens,
    }


def _from_catalog(entry: Entry, variant: Variant, room: Room) -> dict[str, Any]:
    from strata_engine.models import runs_family

    total = _catalog_bytes(variant)
    if not total:
        raise NotFound(f"{entry.name}:{variant.name} is not downloaded, and the catalog does not know its size",
                       f"llmrun pull {entry.name}:{variant.name}")  # fmt: skip
    supported = runs_family(entry.family)
    return {
        "model": f"{entry.name}:{variant.name}",
        "basis": "catalog",
        "architecture": entry.family,
        "supported": supported,
        "fits": total <= room.usable_bytes and supported,
        "weights_bytes": variant.weights_bytes,
        "total_bytes": total,
    }


def _catalog_bytes(variant: Variant) -> int:
    return variant.min_memory_bytes or variant.weights_bytes


def _variants(app: App, entry: Entry, room: Room) -> list[dict[str, Any]]:
    from strata_engine.models import runs_family

    rows: list[dict[str, Any]] = []
    supported = runs_family(entry.family)
    for variant in entry.variants:
        need = _catalog_bytes(variant)
        stored = app.store.find(f"{entry.name}:{variant.name}")
        row = {"name": variant.name, "quant": variant.quant, "weights_bytes": variant.weights_bytes,
               "min_memory_bytes": need, "downloaded": stored is not None and app.store.is_whole(stored),
               "fits": bool(need) and need <= room.usable_bytes and supported}  # fmt: skip
        rows.append(row)
    return rows


def _print(app: App, report: dict[str, Any]) -> None:
    out = app.output
    verdict = "fits" if report["fits"] else "does not fit" if report["supported"] else "cannot be run"
    out.line(f"{report['model']}: {verdict}")
    rows = [["weights", format_bytes(report["weights_bytes"]), ""]]
    if report["basis"] == "files":
        pool = f"{report['pool_tokens']} tokens in all, {format_bytes(report['kv_token_bytes'])} each"
        rows.append(["keys and values", format_bytes(report["kv_bytes"]), pool])
        if report["state_bytes"]:
            rows.append(["recurrent states", format_bytes(report["state_bytes"]), "one for each sequence at once"])
        rows.append(["workspace", format_bytes(report["workspace_bytes"]), ""])
        if report["drafter_bytes"]:
            rows.append(
                [
                    "drafter",
                    format_bytes(report["drafter_bytes"]),
                    "its weights; its keys and values are counted with the model's",
                ]
            )
        if report["disk_bytes"]:
            rows.append(["stays on disk", format_bytes(report["disk_bytes"]), "n-gram table, not in the total"])
    note = "" if report["basis"] == "files" else "by the catalog, with a context of 8192 tokens; not downloaded"
    rows.append(["total", format_bytes(report["total_bytes"]), note])
    left = f"of {format_bytes(report['free_bytes'])} free, less {format_bytes(report['program_bytes'])} for the program"
    margin = f" and {format_bytes(report['margin_bytes'])} margin" if report["margin_bytes"] else ""
    rows.append(["usable", format_bytes(report["usable_bytes"]), left + margin])
    if report["basis"] == "files":
        rows.append(["context", str(report["context_tokens"]), report["context_why"]])
        rows.append(["largest context", str(report["largest_context_tokens"]),
                     f"the model was made for {report['train_context_tokens']}"])  # fmt: skip
    out.table((), rows, right=(1,))
    for where in report["placements"]:
        free = format_bytes(where["free_bytes"])
        out.line(f"on {where['device']} ({where['name']}, {free}): {where['says']} (estimate)")
    if len(report["variants"]) > 1:
        out.line()
        out.table(("VARIANT", "WEIGHTS", "MEMORY", "FITS", ""), [_variant_row(v, report) for v in report["variants"]],
                  right=(1, 2))  # fmt: skip


def _variant_row(variant: dict[str, Any], report: dict[str, Any]) -> list[str]:
    known = bool(variant["min_memory_bytes"])
    marks = ["best" if variant["name"] == report["best_variant"] else "", "downloaded" if variant["downloaded"] else ""]
    return [
        variant["name"],
        format_bytes(variant["weights_bytes"]) if variant["weights_bytes"] else "?",
        format_bytes(variant["min_memory_bytes"]) if known else "?",
        "yes" if variant["fits"] else "no" if known else "?",
        ", ".join(mark for mark in marks if mark),
    ]


def _hint(report: dict[str, Any]) -> str:
    largest = report.get("largest_context_tokens", 0)
    if largest:
        return f"--ctx {largest}"
    if report["best_variant"]:
        return f"the variant {report['best_variant']}"
    return "a smaller model (llmrun ls --all), or close other programs"
