"""Which models there are, for `ls`: downloaded ones, the user's own names, and on request the rest of the catalog."""

from __future__ import annotations

import datetime
import fnmatch
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from strata_cli.app import App
from strata_engine.errors import LlmrunError
from strata_engine.registry.selection import quant_of

if TYPE_CHECKING:
    from strata_engine.registry.entries import Entry, Variant
    from strata_engine.registry.manifest import Manifest

# Without a figure in the catalog: caches and buffers beside the weights, as a share and at least this much.
_MORE_SHARE, _MORE_BYTES = 1.15, 300 * 10**6


@dataclass(frozen=True)
class Row:
    """One line of `ls`. `state`: downloaded | incomplete | catalog | local (a path under a user's name) | alias.

    `need_bytes`: memory to run it, 0 = not known. `modified`: seconds since 1970, 0 = never. `origin`: where the entry
    came from.
    """

    name: str
    variant: str
    reference: str
    state: str
    size_bytes: int = 0
    need_bytes: int = 0
    quant: str = ""
    modified: float = 0.0
    origin: str = ""
    target: str = ""


def rows(app: App, everything: bool = False) -> list[Row]:
    """Downloaded models, the user's names, then (`everything`) what the catalog has besides."""
    manifests = app.store.manifests()
    found = [_downloaded(app, m) for m in manifests]
    found += [_named(app, name, target) for name, target in app.store.aliases().items()]
    if everything:
        have = {m.reference.lower() for m in manifests}
        for entry in app.catalog.entries.values():
            found += [_known(entry, v) for v in entry.variants if f"{entry.name}:{v.name}".lower() not in have]
    return found


def matching(found: list[Row], pattern: str) -> list[Row]:
    """Rows whose name or reference fits a shell pattern (any case); a plain word fits as a beginning."""
    wanted = pattern.lower() if any(c in pattern for c in "*?[") else pattern.lower() + "*"
    return [r for r in found if any(fnmatch.fnmatchcase(t.lower(), wanted) for t in (r.name, r.reference))]


def ordered(found: list[Row], by: str) -> list[Row]:
    """By name, size (largest first) or date (newest first)."""
    if by == "size":
        return sorted(found, key=lambda r: (-r.size_bytes, r.name))
    if by == "date":
        return sorted(found, key=lambda r: (-r.modified, r.name))
    return sorted(found, key=lambda r: (r.name.lower(), r.variant))


def fit(need_bytes: int, memory: tuple[int, int]) -> str:
    """yes = fits what is free now; tight = fits the machine if other programs are closed; no; ? = not known."""
    total, free = memory
    if not need_bytes:
        return "?"
    return "yes" if need_bytes <= free else "tight" if need_bytes <= total else "no"


def need_of(size_bytes: int, min_memory_bytes: int) -> int:
    """Memory to run a model: the catalog's figure, else from its size."""
    if min_memory_bytes or not size_bytes:
        return min_memory_bytes
    return max(int(size_bytes * _MORE_SHARE), size_bytes + _MORE_BYTES)


def machine_memory() -> tuple[int, int]:
    """Total and free bytes."""
    from strata_backends.machine import memory_bytes

    return memory_bytes()


def as_json(row: Row, memory: tuple[int, int]) -> dict[str, Any]:
    """One row for machines."""
    when = datetime.datetime.fromtimestamp(row.modified, datetime.timezone.utc).isoformat() if row.modified else None
    return {
        **asdict(row),
        "modified": when,
        "downloaded": row.state == "downloaded",
        "fit": fit(row.need_bytes, memory),
    }


def _downloaded(app: App, found: Manifest) -> Row:
    entry = app.catalog.find(found.base)
    variant = entry.variant(found.variant) if entry else None
    weights = next((f.name for f in found.files if f.role == "weights"), "")
    state = "downloaded" if app.store.is_whole(found) else "incomplete"
    need = need_of(found.size_bytes, variant.min_memory_bytes if variant else 0)
    quant = variant.quant if variant else quant_of(weights)
    return Row(found.base, found.variant, found.reference, state, found.size_bytes, need, quant, found.pulled_at,
               found.source)  # fmt: skip


def _named(app: App, name: str, target: str) -> Row:
    from strata_engine.registry.files import ModelFiles
    from strata_engine.registry.reference import parse
    from strata_engine.registry.resolve import resolve

    try:
        found = resolve(parse(name), app.catalog, app.store)
    except LlmrunError as error:
        return Row(name, "", name, "incomplete", origin=error.message, target=target)
    origin = str(app.store.alias_file)
    if not isinstance(found, ModelFiles):
        return Row(name, "", name, "alias", origin=origin, target=target)
    is_path = found.root == found.reference
    size = found.size_bytes if is_path else 0
    weights = next((f.name for f in found.files if f.role == "weights"), "")
    modified = max(f.path.stat().st_mtime for f in found.files)
    state = "local" if is_path else "alias"
    need, quant = need_of(found.size_bytes, 0), quant_of(weights)
    return Row(name, found.variant, name, state, size, need, quant, modified, origin, target)


def _known(entry: Entry, variant: Variant) -> Row:
    need = need_of(variant.weights_bytes, variant.min_memory_bytes)
    origin = "packaged" if entry.packaged else str(entry.origin)
    return Row(entry.name, variant.name, f"{entry.name}:{variant.name}", "catalog", variant.weights_bytes, need,
               variant.quant, 0.0, origin)  # fmt: skip
