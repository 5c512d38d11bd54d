"""What a catalog entry holds. Plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HUBS = ("huggingface", "modelscope")
ROLES = ("weights", "mmproj", "tokenizer", "template", "config", "draft")


_SHA256 = re.compile(r"[0-9a-f]{64}")


def sha256_or_nothing(text: object) -> str:
    """A sha256 as a server tells it; "" for anything else: it becomes part of a file name, so nothing else may pass."""
    lower = str(text or "").lower()
    return lower if _SHA256.fullmatch(lower) else ""


@dataclass(frozen=True)
class Source:
    """One place files come from. `kind`: huggingface | modelscope | url | index | local; only its own fields are set.

    `local` means that no public place is known (`note` says why), or that the files lie at `path`.
    """

    kind: str
    repo: str = ""
    revision: str = ""
    url: str = ""
    package: str = ""
    version: str = ""
    member: str = ""
    path: str = ""
    note: str = ""

    @property
    def label(self) -> str:
        """Short text for people."""
        if self.kind in HUBS:
            return f"{self.kind} {self.repo}" + (f"@{self.revision[:12]}" if self.revision else "")
        if self.kind == "index":
            return f"package index {self.package} {self.version}"
        return self.url or self.path or "local"


@dataclass(frozen=True)
class CatalogFile:
    """One wanted file. `path` is its path in the source; `size` 0 and `sha256` "" where the catalog does not know."""

    path: str
    role: str = "weights"
    size: int = 0
    sha256: str = ""

    @property
    def name(self) -> str:
        """File name without folders."""
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Variant:
    """One storage of a model. No `files`: the whole checkpoint of the source. Sizes in bytes, 0 = not known."""

    name: str
    files: tuple[CatalogFile, ...] = ()
    sources: tuple[Source, ...] = ()
    quant: str = ""
    bpw: float = 0.0
    weights_bytes: int = 0
    min_memory_bytes: int = 0
    note: str = ""


@dataclass(frozen=True)
class Drafter:
    """A model that drafts for this one. `built_in`: its tensors lie in the model's own checkpoint."""

    name: str
    sources: tuple[Source, ...] = ()
    files: tuple[CatalogFile, ...] = ()
    n_max: int = 0
    built_in: bool = False
    variants: tuple[str, ...] = ()  # variants it is meant for; empty = all
    note: str = ""


@dataclass(frozen=True)
class Entry:
    """One model of the catalog; the first variant is the default one. `origin`: the file it was (last) read from."""

    name: str
    variants: tuple[Variant, ...]
    title: str = ""
    family: str = ""
    license: str = ""
    aliases: tuple[str, ...] = ()
    default: bool = False
    drafters: tuple[Drafter, ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict)
    chat: dict[str, Any] = field(default_factory=dict)
    parameters: int = 0
    replaces: str = ""
    added: str = ""
    origin: Path = Path()
    packaged: bool = False

    def variant(self, name: str) -> Variant | None:
        """The variant of this name in any case; the first one for ""."""
        if not name:
            return self.variants[0]
        return next((v for v in self.variants if v.name.lower() == name.lower()), None)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of the entry."""
        return (self.name, *self.aliases)
