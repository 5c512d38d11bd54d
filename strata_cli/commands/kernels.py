"""kernels: compiled GPU kernels: build what a model needs, list, check, clean, carry to another machine. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata_backends.probe import gpus
from strata_cli.app import App
from strata_cli.devices import place_of
from strata_cli.keys import KEYS
from strata_engine.errors import CheckFailed, DeviceError, IntegrityError, NotFound, UsageError
from strata_engine.paths import expand
from strata_engine.units import format_bytes
from strata_kernels.gpu.targets import TARGETS, arch_names, find_targets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from strata_engine.registry.files import ModelFiles
    from strata_kernels.gpu.bundle import Store
    from strata_kernels.gpu.compile import Outcome
    from strata_kernels.gpu.launch import Variant

kernels = typer.Typer(
    add_completion=False, rich_markup_mode=None, help="Build, list, check or clean compiled GPU kernels."
)

Arch = Annotated[
    str,
    typer.Option(
        "--arch", metavar="|".join(("auto", *arch_names())), help="Device; auto: the GPUs of this machine, if any"
    ),
]
Model = Annotated[str, typer.Option("--model", metavar="MODEL", help="Model whose kernels are meant")]
CacheDir = Annotated[
    str, typer.Option("--cache-dir", metavar="DIR", help="Where compiled kernels lie", show_default=False)
]
KvType = Annotated[
    str | None, typer.Option("--kv-type", metavar="|".join(KEYS["kv_type"].choices), help=KEYS["kv_type"].meaning)
]
Spec = Annotated[
    str | None, typer.Option("--spec", metavar="|".join(KEYS["spec"].choices), help="Kernels of this drafter too")
]


@kernels.command("build")
def build(
    context: typer.Context,
    arch: Arch = "auto",
    model: Model = "",
    jobs: Annotated[int, typer.Option("--jobs", "-j", metavar="N", help="Compilers at once; 0: one a core")] = 0,
    kv_type: KvType = None,
    spec: Spec = None,
    force: Annotated[bool, typer.Option("--force", help="Compile those too that are there")] = False,
    cache_dir: CacheDir = "",
) -> None:
    """Compile the kernels that a model needs; needs no GPU.

    Ends with 8 when a kernel does not compile, or the compiler is missing.
    """
    app = App.of(context)
    if jobs < 0:
        raise UsageError(f"--jobs {jobs} must not be negative")
    archs, root = _wanted(app, arch), _root(app, cache_dir)
    variants = _variants(app, model, {"kv_type": kv_type, "spec": spec})
    done = [one for name in archs for one in _build(app, variants, name, root, jobs, force)]
    if app.output.json_mode:
        app.output.data("llmrun.kernels.build.v1", {"root": str(root), "kernels": [_outcome(one) for one in done]})
        return
    for name in archs:
        own = [one for one in done if one.arch == name]
        built = [one for one in own if one.state == "built"]
        seconds = f", {sum(one.seconds for one in built):.1f} s of compiling" if built else ""
        there = f"{len(built)} built, {len(own) - len(built)} were there"
        app.output.line(f"{name}: {len(own)} kernels, {there}{seconds}")


def _build(app: App, variants: Sequence[Variant], arch: str, root: Path, jobs: int, force: bool) -> list[Outcome]:
    from strata_cli.kernel_progress import KernelProgress
    from strata_kernels.gpu.compile import BuildFailed, CompilerMissing, ensure_kernels

    try:
        with KernelProgress(app.output, arch) as progress:
            return ensure_kernels(variants, arch, root, progress, jobs, force)
    except CompilerMissing as error:
        raise DeviceError(str(error), error.hint) from error
    except BuildFailed as error:
        failed = [_outcome(one) for one in error.outcomes if one.error]
        raise DeviceError(str(error), "report this kernel; other kernels are built", {"kernels": failed}) from error


def _outcome(one: Outcome) -> dict[str, Any]:
    told = {"arch": one.arch, "kernel": one.variant.key, "state": one.state, "seconds": round(one.seconds, 3)}
    if one.entry is not None:
        told |= {"file": one.entry.file_name, "bytes": len(one.entry.code), "figures": dict(one.entry.figures)}
    return {**told, "why": one.why, **({"error": one.error} if one.error else {})}


@kernels.command("list")
def list_kernels(context: typer.Context, arch: Arch = "auto", cache_dir: CacheDir = "") -> None:
    """List compiled kernels."""
    app = App.of(context)
    root = _root(app, cache_dir)
    rows = [_row(store, path) for store in _stores(app, root, arch) for path in store.files()]
    if app.output.json_mode:
        app.output.data("llmrun.kernels.list.v1", {"root": str(root), "kernels": rows})
        return
    table = [[r["arch"], r["kernel"], format_bytes(r["bytes"]), str(r["registers"] or ""), r["state"]] for r in rows]
    app.output.table(("ARCH", "KERNEL", "SIZE", "REGISTERS", "STATE"), table, right=(2, 3))
    app.output.note(f"{len(rows)} kernels, {format_bytes(sum(r['bytes'] for r in rows))} in {root}")


def _row(store: Store, path: Path) -> dict[str, Any]:
    """What is told of a file. `state`: ready, old (its sources have changed) or damaged."""
    from strata_kernels.gpu.bundle import BadEntry

    try:
        entry = store.read(path)
    except BadEntry as error:
        return {"arch": store.arch, "kernel": path.name, "file": path.name, "bytes": path.stat().st_size,
                "registers": None, "state": "damaged", "fault": str(error)}  # fmt: skip
    if entry is None:
        return {"arch": store.arch, "kernel": path.name, "file": path.name, "bytes": 0, "registers": None,
                "state": "gone"}  # fmt: skip
    return {"arch": store.arch, "kernel": entry.key, "file": path.name, "bytes": path.stat().st_size,
            "registers": entry.figures.get("vgprs"), "state": "ready" if store.is_current(entry) else "old",
            "toolchain": entry.toolchain, "figures": dict(entry.figures)}  # fmt: skip


@kernels.command("verify")
def verify(
    context: typer.Context, arch: Arch = "auto", model: Model = "", kv_type: KvType = None, spec: Spec = None,
    cache_dir: CacheDir = "",
) -> None:  # fmt: skip
    """Check compiled kernels: sha256, device, sources; with --model that none is missing.

    Ends with 6 when one is damaged, 10 when one is missing.
    """
    app = App.of(context)
    root = _root(app, cache_dir)
    stores = _stores(app, root, arch)
    rows = [_row(store, path) for store in stores for path in store.files()]
    missing = _missing(app, stores, model, {"kv_type": kv_type, "spec": spec}) if model else []
    damaged = [row for row in rows if row["state"] == "damaged"]
    if not rows and not missing:
        raise NotFound(f"there are no compiled kernels in {root}", "llmrun kernels build --model MODEL")
    told = {"root": str(root), "kernels": len(rows), "old": sum(row["state"] == "old" for row in rows),
            "damaged": damaged, "missing": missing}  # fmt: skip
    if damaged:
        faults = "; ".join(row["fault"] for row in damaged[:3])
        raise IntegrityError(f"{len(damaged)} of {len(rows)} kernels are damaged: {faults}",
                             "llmrun kernels build compiles them again", told)  # fmt: skip
    if missing:
        first = f"{missing[0]['kernel']} for {missing[0]['arch']}"
        raise CheckFailed(f"{len(missing)} kernels of {model} are missing, the first is {first}",
                          f"llmrun kernels build --arch {arch} --model {model}", told)  # fmt: skip
    if app.output.json_mode:
        app.output.data("llmrun.kernels.verify.v1", told)
        return
    for store in stores:
        own = [row for row in rows if row["arch"] == store.arch]
        old = sum(row["state"] == "old" for row in own)
        app.output.line(f"{store.arch}: {len(own)} kernels checked, no damage{f', {old} are old' if old else ''}")


def _missing(app: App, stores: Sequence[Store], model: str, given: dict[str, Any]) -> list[dict[str, str]]:
    variants = _variants(app, model, given)
    return [
        {"arch": store.arch, "kernel": variant.key}
        for store in stores
        for variant in variants
        if not store.path(variant).is_file()
    ]


@kernels.command("clean")
def clean(
    context: typer.Context,
    arch: Arch = "auto",
    everything: Annotated[bool, typer.Option("--all", help="Remove those too that are ready")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, remove nothing")] = False,
    cache_dir: CacheDir = "",
) -> None:
    """Remove old and damaged kernels; with --all every one."""
    app = App.of(context)
    root = _root(app, cache_dir)
    rows = [(store, _row(store, path)) for store in _stores(app, root, arch) for path in store.files()]
    chosen = [(store, row) for store, row in rows if everything or row["state"] != "ready"]
    for store, row in chosen:
        if not dry_run:
            (store.folder / row["file"]).unlink(missing_ok=True)
    freed = sum(row["bytes"] for _, row in chosen)
    if app.output.json_mode:
        app.output.data("llmrun.kernels.clean.v1",
                        {"dry_run": dry_run, "freed_bytes": freed, "kernels": [row for _, row in chosen]})  # fmt: skip
        return
    verb = "would be removed" if dry_run else "removed"
    app.output.line(f"{len(chosen)} of {len(rows)} kernels {verb}, {format_bytes(freed)}")


@kernels.command("export")
def export_file(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Archive to write")],
    arch: Arch = "auto",
    cache_dir: CacheDir = "",
) -> None:
    """Write compiled kernels into one file, for a machine without the compiler."""
    from strata_kernels.gpu.archive import export_kernels
    from strata_kernels.gpu.bundle import BadEntry

    app = App.of(context)
    root, path = _root(app, cache_dir), expand(file)
    stores = [store for store in _stores(app, root, arch) if any(store.files())]
    if not stores:
        raise NotFound(f"there are no compiled kernels in {root}", "llmrun kernels build --model MODEL")
    try:
        counts = export_kernels(stores, path)
    except BadEntry as error:
        raise IntegrityError(str(error), "llmrun kernels clean") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    _told_counts(app, "export", path, counts, 0)


@kernels.command("import")
def import_file(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Archive that kernels export wrote")],
    cache_dir: CacheDir = "",
) -> None:
    """Take compiled kernels from a file; each is checked first. Ends with 6 when one is damaged."""
    from strata_kernels.gpu.archive import import_kernels
    from strata_kernels.gpu.bundle import BadEntry

    app = App.of(context)
    path = expand(file)
    if not path.is_file():
        raise NotFound(f"{path} does not exist")
    try:
        found = import_kernels(path, _root(app, cache_dir))
    except BadEntry as error:
        raise IntegrityError(str(error), "export it again; nothing was taken from it") from error
    if found.stale:
        app.output.warn(f"{found.stale} kernels are of other sources than this version's and will not be used")
    _told_counts(app, "import", path, found.counts, found.stale)


def _told_counts(app: App, what: str, path: Path, counts: dict[str, int], stale: int) -> None:
    if app.output.json_mode:
        told = {"file": str(path), "kernels": counts, "old": stale}
        app.output.data(f"llmrun.kernels.{what}.v1", told)
        return
    for arch, count in counts.items():
        app.output.line(f"{arch}: {count} kernels {'into' if what == 'export' else 'from'} {path}")


def _root(app: App, cache_dir: str) -> Path:
    return expand(cache_dir) if cache_dir else app.paths.kernels


def _here(app: App) -> list[str]:
    """Names of this machine's GPUs that kernels can be compiled for."""
    found = (gpu.arch for gpu in gpus(place_of(app)))
    return list(dict.fromkeys(arch for arch in found if arch in TARGETS))


def _wanted(app: App, arch: str) -> list[str]:
    """The devices to build for. Raises UsageError, DeviceError."""
    if arch != "auto":
        return _named(arch)
    here = _here(app)
    if not here:
        raise DeviceError("this machine has no GPU that kernels are compiled for", f"--arch {'|'.join(arch_names())}")
    return here


def _named(arch: str) -> list[str]:
    try:
        return [target.arch for target in find_targets(arch.split(","))]
    except ValueError as error:
        raise UsageError(f"--arch {arch}: {error}", f"one of: auto, {', '.join(arch_names())}") from error


def _stores(app: App, root: Path, arch: str) -> list[Store]:
    """Stores of the devices named; auto: of this machine's GPUs, without any all that have kernels."""
    from strata_kernels.gpu.bundle import Store, stores

    names: Iterable[str] = _here(app) if arch == "auto" else _named(arch)
    return [Store(root, name) for name in names] or stores(root)


def _variants(app: App, model: str, given: dict[str, Any]) -> Sequence[Variant]:
    from strata_engine.runtime.kernels import needed_kernels

    settings = app.settings.override({name: value for name, value in given.items() if value is not None})
    needed = needed_kernels(_files(app, model), settings.engine_config())
    for notice in needed.notices:
        app.output.warn(notice)
    return needed.variants


def _files(app: App, model: str) -> ModelFiles:
    """The model's files, or its config where it has no weights. Raises NotFound, UsageError."""
    from strata_engine.registry.local import config_only
    from strata_engine.registry.reference import parse
    from strata_engine.registry.resolve import Missing, resolve

    default = app.catalog.default
    text = model or (default.name if default else "")
    if not text:
        raise UsageError("no model named, and the catalog has no default", "llmrun ls --all")
    described = None if app.catalog.find(text) else config_only(text)
    found = described or resolve(parse(text), app.catalog, app.store)
    if isinstance(found, Missing):
        raise NotFound(f"{text} is not downloaded", f"llmrun pull {text}")
    return found
