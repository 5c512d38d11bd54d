"""From what is missing to a plan: exactly which files, how many bytes, from which sources in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from strata_engine.errors import AuthError, IntegrityError, LlmrunError, NetworkError, NotFound
from strata_engine.registry.download import TransferOptions
from strata_engine.registry.entries import HUBS, CatalogFile, Drafter, Entry, Source, Variant
from strata_engine.registry.hubs.base import HubSettings, Listing
from strata_engine.registry.hubs.direct import file_name
from strata_engine.registry.progress import Progress, Report
from strata_engine.registry.resolve import Missing, not_registered
from strata_engine.registry.roles import role_of, shard_of
from strata_engine.registry.selection import add_mmproj, select
from strata_engine.registry.sources import Hubs


@dataclass(frozen=True)
class PullOptions:
    """How to pull. `only`: one kind of source ("" = all). `answer_s`: how long a source may stay silent.

    `mmproj`: with the image projector of a GGUF repository; None: if it holds one that fits.
    """

    hubs: HubSettings = field(default_factory=HubSettings)
    transfer: TransferOptions = field(default_factory=TransferOptions)
    offline: bool = False
    verify: str = "size"
    only: str = ""
    mmproj: bool | None = None
    answer_s: float = 3.0


@dataclass(frozen=True)
class PullPlan:
    """One model to fetch. `listed`: the first source answered while the plan was made."""

    reference: str
    base: str
    variant: str
    name: str
    root: str
    files: tuple[CatalogFile, ...]
    sources: tuple[Source, ...]
    revision: str = ""
    directory: bool = False
    listed: bool = False
    options: PullOptions = field(default_factory=PullOptions)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files whose size is known."""
        return sum(f.size for f in self.files)


def make_plan(missing: Missing, options: PullOptions, hubs: Hubs, report: Report) -> PullPlan:
    """Decide what to fetch. Asks a source for its listing only where the catalog does not know sizes and hashes."""
    draft = _from_entry(missing, options) if missing.entry and missing.variant else _from_reference(missing, options)
    if not draft.sources:
        raise NotFound(f"{draft.name} cannot come from {options.only}", "leave out --source")
    if draft.files and all(f.size and f.sha256 for f in draft.files):
        return draft
    if options.offline:
        raise NetworkError(f"{draft.name} is not on this disk, and the network is switched off",
                           f"llmrun pull {draft.reference}   (without --offline)")  # fmt: skip
    return _listed(draft, missing.reference.file or missing.reference.variant, hubs, report)


def drafter_missing(entry: Entry, drafter: Drafter, missing: Missing) -> Missing:
    """A drafter as something to pull on its own, named ENTRY+DRAFTER."""
    variant = Variant("default", drafter.files, drafter.sources)
    own = Entry(f"{entry.name}+{drafter.name}", (variant,), family=entry.family, origin=entry.origin)
    reference = replace(missing.reference, target=own.name, variant="", revision="")
    return Missing(reference, own, variant, drafter.note)


def _from_entry(missing: Missing, options: PullOptions) -> PullPlan:
    entry, variant, revision = missing.entry, missing.variant, missing.reference.revision
    if entry is None or variant is None or missing.local_only:
        raise not_registered(missing)
    sources, files = _wanted(variant.sources, options.only), variant.files
    if revision:  # the catalog's sizes and hashes are those of its own revision
        sources = tuple(replace(s, revision=revision) for s in sources if s.kind in HUBS)
        files = tuple(replace(f, size=0, sha256="") for f in files)
    first = sources[0] if sources else variant.sources[0]
    return PullPlan(f"{entry.name}:{variant.name}", entry.name, variant.name, entry.name, first.repo or first.label,
                    files, sources, first.revision, options=options)  # fmt: skip


def _from_reference(missing: Missing, options: PullOptions) -> PullPlan:
    reference = missing.reference
    base = replace(reference, variant="", revision="").normal
    if reference.kind == "url":
        name = file_name(reference.target)
        shard = shard_of(name)
        stem = shard.stem if shard else name.rsplit(".", 1)[0]
        source = Source("url", url=reference.target)
        files = (CatalogFile(name, "weights", 0, reference.sha256),) if reference.sha256 and not shard else ()
        return PullPlan(base, base, "", stem, reference.target, files, (source,), options=options)
    kind = options.only if options.only in HUBS else reference.hub
    source = Source(kind, reference.target, reference.revision)
    name = reference.normal
    return PullPlan(base, base, reference.variant, name, reference.target, (), (source,), options=options)


def _wanted(sources: Sequence[Source], only: str) -> tuple[Source, ...]:
    usable = [s for s in sources if s.kind != "local"]
    return tuple(s for s in usable if not only or s.kind == only)


def _listed(draft: PullPlan, wanted: str, hubs: Hubs, report: Report) -> PullPlan:
    faults: list[LlmrunError] = []
    for i, source in enumerate(draft.sources):
        last = i == len(draft.sources) - 1
        try:
            report(Progress("source", draft.name, message=source.label))
            silent = "" if last else hubs.silence(source, draft.options.answer_s)
            if silent:
                raise NetworkError(f"{source.label}: {silent}")
            listing = hubs.hub(source).listing(source)
            return _filled(replace(draft, sources=draft.sources[i:]), source, listing, wanted)
        except (NetworkError, AuthError, NotFound) as error:
            faults.append(error)
            if not last:
                report(Progress("switch", draft.name, message=error.message))
    raise worst(draft.name, faults)


def _filled(draft: PullPlan, source: Source, listing: Listing, wanted: str) -> PullPlan:
    if draft.files:
        by_path = {f.path: f for f in listing.files}
        missing = [f.path for f in draft.files if f.path not in by_path and source.kind in HUBS]
        if missing:
            raise NotFound(f"{source.label} lacks {', '.join(missing[:3])}", "a newer catalog, or another source")
        files = tuple(_joined(f, by_path.get(f.path)) for f in draft.files)
        variant = draft.variant
    else:
        quant = "" if source.kind == "url" or draft.reference != draft.base else wanted
        chosen, variant = select(listing.files, quant, source.repo or source.url)
        if draft.options.mmproj is not False:
            chosen = add_mmproj(chosen, listing.files, fitting=draft.options.mmproj is None)
        files, variant = tuple(chosen), draft.variant or variant
    directory = any(f.name == "config.json" for f in files)
    reference = draft.reference
    if reference == draft.base and variant:  # the quant becomes part of the name; a file path is there already
        reference = f"{draft.base}:{variant}" if source.kind in HUBS else reference
    _check_names(files, draft.name)
    return replace(draft, files=files, variant=variant, reference=reference, directory=directory, listed=True,
                   revision=listing.revision or draft.revision)  # fmt: skip


def _joined(file: CatalogFile, found: CatalogFile | None) -> CatalogFile:
    if found is None:
        return file
    if file.sha256 and found.sha256 and file.sha256 != found.sha256:
        raise IntegrityError(f"{file.path}: the source's file is not the one of the catalog", "another source")
    role = file.role if file.role != "weights" else role_of(file.name) or file.role
    return CatalogFile(file.path, role, file.size or found.size, file.sha256 or found.sha256)


def _check_names(files: Sequence[CatalogFile], name: str) -> None:
    names = [f.name for f in files]
    odd = [n for n in names if not n.isprintable() or "\\" in n]
    if odd:
        raise NotFound(f"{name}: not a usable file name: {odd[0]!r}", "another repository")
    if len(set(names)) != len(names):
        raise NotFound(f"{name}: two of its files have the same name", "name one file of the repository")


def worst(name: str, faults: Sequence[LlmrunError]) -> LlmrunError:
    """One error for several sources that failed: the kind that says most, with every reason."""
    if len(faults) == 1:
        return faults[0]
    for kind in (AuthError, IntegrityError, NetworkError, LlmrunError):
        found = [f for f in faults if isinstance(f, kind)]
        if found:
            reasons = "; ".join(f.message for f in faults)
            return type(found[-1])(f"{name}: no source could deliver it: {reasons}", found[-1].hint,
                                   {"faults": [f.message for f in faults]})  # fmt: skip
    return NotFound(f"{name} has no source")
