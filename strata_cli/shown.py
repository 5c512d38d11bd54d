"""Prints what `show` shows: a model on this disk, a catalog entry, or a source's listing."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from strata_cli import inventory
from strata_cli.app import App
from strata_cli.describe import Description, file_record, lines_of, plain, short, tensor_record
from strata_cli.fetch import pull_options
from strata_engine.registry.resolve import Missing, pullable
from strata_engine.units import format_bytes

if TYPE_CHECKING:
    from strata_engine.registry.files import ModelFiles
    from strata_engine.registry.reference import Reference

_SCHEMA = "llmrun.show.v1"


@dataclass(frozen=True)
class Sections:
    """What was asked for; nothing = the overview."""

    template: bool = False
    license: bool = False
    params: bool = False
    tensors: bool = False
    metadata: bool = False
    files: bool = False
    system: bool = False

    @property
    def any(self) -> bool:
        """Whether a section was named."""
        return any(asdict(self).values())


def show_local(app: App, files: ModelFiles, asked: Sections) -> int:
    """A model on this disk. Raises CorruptFile for a damaged one."""
    with contextlib.closing(Description(app, files)) as found:
        if app.output.json_mode:
            app.output.data(_SCHEMA, _document(found, asked))
        elif asked.any:
            _print_sections(app, found, asked)
        else:
            _print_overview(app, found)
    return 0


def _document(found: Description, asked: Sections) -> dict[str, Any]:
    """Named sections, or all but the tensors."""
    whole = not asked.any
    document: dict[str, Any] = {"name": found.files.name, "reference": found.files.reference, "root": found.files.root,
                                "size_bytes": found.files.size_bytes}  # fmt: skip
    if whole:
        document |= found.overview()
    if whole or asked.files:
        document["files"] = [file_record(f) for f in (found.hashed_files() if asked.files else found.files.files)]
    if whole or asked.params:
        document |= {"defaults": found.parameters(), "chat": dict(found.files.chat)}
    if whole or asked.template:
        document["template"] = found.template()
    if whole or asked.license:
        document["license_text"] = found.license_text()
    if whole or asked.system:
        document["system"] = found.system()
    if whole or asked.metadata:
        document["metadata"] = plain(found.metadata)
    if asked.tensors:
        document["tensors"] = [tensor_record(t) for t in found.tensors.values()]
    return document


def _print_overview(app: App, found: Description) -> None:
    output = app.output
    overview = found.overview()
    need = inventory.need_of(found.files.size_bytes, _min_memory(found))
    fits = inventory.fit(need, inventory.machine_memory())
    rows = [*lines_of(overview), ["memory", f"{format_bytes(need)} ({'fits' if fits == 'yes' else fits})"]]
    output.table((), rows)
    if found.parameters():
        output.line()
        output.line("defaults")
        output.table((), [["  " + k, v] for k, v in lines_of(found.parameters())])


def _min_memory(found: Description) -> int:
    variant = found.entry.variant(found.files.variant) if found.entry else None
    return variant.min_memory_bytes if variant else 0


def _print_sections(app: App, found: Description, asked: Sections) -> None:
    output = app.output
    if asked.template:
        output.line(found.template().rstrip("\n"))
    if asked.license:
        output.line(found.license_text())
    if asked.params:
        output.table((), lines_of({**found.parameters(), **found.files.chat}))
    if asked.system:
        output.line(found.system())
    if asked.files:
        rows = [[f.role, format_bytes(f.size), f.sha256, str(f.path.absolute())] for f in found.hashed_files()]
        output.table(["ROLE", "SIZE", "SHA256", "PATH"], rows, right=[1])
    if asked.metadata:
        output.table((), [[k, short(v)] for k, v in found.metadata.items()])
    if asked.tensors:
        rows = [[t.name, t.type, " x ".join(map(str, t.shape)), format_bytes(t.nbytes)] for t in found.tensors.values()]
        output.table(["TENSOR", "TYPE", "SHAPE", "SIZE"], rows, right=[3])


def show_known(app: App, missing: Missing) -> int:
    """A catalog model that is not on this disk."""
    entry = missing.entry
    if entry is None:
        return 0
    memory = inventory.machine_memory()
    variants = [_variant_record(v, memory) for v in entry.variants]
    drafters = [{"name": d.name, "built_in": d.built_in, "note": d.note, "sources": [s.label for s in d.sources]}
                for d in entry.drafters]  # fmt: skip
    facts = {"name": entry.name, "title": entry.title, "aliases": list(entry.aliases), "family": entry.family,
             "license": entry.license, "parameters": entry.parameters, "note": missing.note}  # fmt: skip
    if app.output.json_mode:
        more = {
            "downloaded": False,
            "defaults": entry.defaults,
            "chat": entry.chat,
            "variants": variants,
            "drafters": drafters,
        }
        app.output.data(_SCHEMA, {**facts, **more})
        return 0
    app.output.table((), lines_of({k: v for k, v in facts.items() if v}))
    app.output.line()
    rows = [[v["name"], v["quant"], format_bytes(v["weights_bytes"]), format_bytes(v["min_memory_bytes"]), v["fit"],
             v["sources"][0]] for v in variants]  # fmt: skip
    app.output.table(["VARIANT", "QUANT", "WEIGHTS", "MEMORY", "FIT", "SOURCE"], rows, right=[2, 3])
    for drafter in drafters:
        where = "part of the model" if drafter["built_in"] else ", ".join(drafter["sources"])
        app.output.line(f"drafter {drafter['name']}: {where}")
    how = f"llmrun cp PATH {entry.name}" if missing.local_only else f"llmrun pull {missing.name}"
    app.output.note(f"not on this disk: {how}")
    return 0


def _variant_record(variant: Any, memory: tuple[int, int]) -> dict[str, Any]:
    need = inventory.need_of(variant.weights_bytes, variant.min_memory_bytes)
    return {"name": variant.name, "quant": variant.quant, "bpw": variant.bpw, "weights_bytes": variant.weights_bytes,
            "min_memory_bytes": need, "fit": inventory.fit(need, memory), "note": variant.note,
            "sources": [s.label for s in variant.sources]}  # fmt: skip


def show_remote(app: App, reference: Reference) -> int:
    """Files that a pull would take, as the source lists them now."""
    from strata_engine.errors import UsageError
    from strata_engine.registry.plan import make_plan
    from strata_engine.registry.progress import ignore
    from strata_engine.registry.sources import Hubs

    missing = pullable(reference, app.catalog, app.store)
    if missing is None:
        raise UsageError(f"{reference.text} has no remote source", "leave --remote out")
    options = pull_options(app)
    hubs = Hubs(options.hubs, options.transfer, options.offline)
    try:
        plan = make_plan(missing, options, hubs, ignore)
    finally:
        hubs.close()
    records = [{"name": f.name, "role": f.role, "size": f.size, "sha256": f.sha256} for f in plan.files]
    if app.output.json_mode:
        facts = {"name": plan.name, "reference": plan.reference, "source": plan.sources[0].label}
        app.output.data(_SCHEMA, {**facts, "revision": plan.revision, "size_bytes": plan.total_bytes, "files": records})
        return 0
    app.output.line(f"{plan.reference} from {plan.sources[0].label}, {format_bytes(plan.total_bytes)}")
    rows = [[f.role, format_bytes(f.size) if f.size else "?", f.sha256 or "-", f.name] for f in plan.files]
    app.output.table(["ROLE", "SIZE", "SHA256", "FILE"], rows, right=[1])
    return 0
