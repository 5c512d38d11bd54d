"""Stores, plans and pulls for registry tests: everything below one temporary folder, quick tries, no real network."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from strata_engine.env import Env
from strata_engine.registry.catalog import Catalog, load_catalog
from strata_engine.registry.download import TransferOptions
from strata_engine.registry.hubs.base import HubSettings
from strata_engine.registry.limits import Patience
from strata_engine.registry.manifest import Manifest, ManifestFile
from strata_engine.registry.plan import PullOptions, make_plan
from strata_engine.registry.progress import Progress
from strata_engine.registry.pull import pull
from strata_engine.registry.reference import parse
from strata_engine.registry.resolve import Missing, pullable
from strata_engine.registry.sources import Hubs
from strata_engine.registry.store import Store

QUICK = TransferOptions(connections=3, patience=Patience(3, 0.01, 0.02, 5.0))


def gguf_like(size: int, seed: int = 1) -> bytes:
    """Bytes that begin as a GGUF file does and do not compress."""
    body, counter = b"GGUF" + struct.pack("<I", 3), 0
    blocks = [body]
    have = len(body)
    while have < size:
        block = hashlib.sha512(f"{seed}/{counter}".encode()).digest()
        blocks.append(block)
        have, counter = have + len(block), counter + 1
    return b"".join(blocks)[:size]


def sha(data: bytes) -> str:
    """sha256 as hex."""
    return hashlib.sha256(data).hexdigest()


def store_in(folder: Path) -> Store:
    """A store below a folder."""
    return Store(Env({"LLMRUN_HOME": str(folder)}).paths())


def catalog_of(folder: Path, text: str) -> Catalog:
    """A catalog of one text, without the packaged entries."""
    file = folder / "models.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return load_catalog(packaged=file)


class Events(list[Progress]):
    """A report that keeps everything."""

    def __call__(self, progress: Progress) -> None:
        self.append(progress)

    def of(self, kind: str) -> list[Progress]:
        """Events of one kind."""
        return [p for p in self if p.event == kind]


def options(endpoint: str = "http://127.0.0.1:1", **changes) -> PullOptions:
    """Options with quick tries; `hub_*` go to HubSettings, the others to PullOptions."""
    hub = {k[4:]: changes.pop(k) for k in list(changes) if k.startswith("hub_")}
    given = {"transfer": QUICK, "answer_s": 1.0, **changes}
    return PullOptions(hubs=HubSettings(hf_endpoint=endpoint, **hub), **given)


def pull_text(text: str, store: Store, catalog: Catalog, how: PullOptions, events: Events | None = None, hubs=None):
    """Parse, plan and pull one reference."""
    missing = pullable(parse(text), catalog, store)
    assert isinstance(missing, Missing), text
    own = hubs or Hubs(how.hubs, how.transfer, how.offline)
    report = Events() if events is None else events
    try:
        return pull(make_plan(missing, how, own, report), store, report, own)
    finally:
        own.close()


def put_model(store: Store, reference: str, files: dict[str, bytes], pulled_at: float = 1.0) -> Manifest:
    """A downloaded model, put in place without a download."""
    records = []
    for name, body in files.items():
        path = store.blob(sha(body))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        records.append(ManifestFile(name, "mmproj" if name.startswith("mmproj") else "weights", len(body), sha(body)))
    base, _, variant = reference.partition(":")
    made = Manifest(reference, base, variant, base, base, tuple(records), "test", "", False, pulled_at)
    assert store.write(made)
    return made
