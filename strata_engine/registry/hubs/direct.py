"""A plain address: one file, or all shards of the set it belongs to."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit, urlunsplit

from strata_engine.errors import UsageError
from strata_engine.registry.entries import CatalogFile, Source
from strata_engine.registry.hubs.base import Listing
from strata_engine.registry.remote import Remote
from strata_engine.registry.roles import shard_of


class Direct:
    """See `Hub`. Lengths are learnt when the file is fetched."""

    def address(self, source: Source) -> str:
        """The file's own address."""
        return source.url

    def listing(self, source: Source) -> Listing:
        """The file, or every shard. Raises UsageError when the address names no model file."""
        name = file_name(source.url)
        if not name.lower().endswith((".gguf", ".safetensors")):
            raise UsageError(f"{source.url}: not the address of a .gguf file", "the address of the file itself")
        if name.lower().endswith(".safetensors"):
            raise UsageError(f"{source.url}: a .safetensors file alone is no model", "a hub repository, or a directory")
        shard = shard_of(name)
        names = [shard.name(i) for i in range(1, shard.count + 1)] if shard else [name]
        return Listing("", tuple(CatalogFile(n) for n in names))

    def remote(self, source: Source, revision: str, file: CatalogFile) -> Remote:
        """The address with the file's name in place of the given one."""
        parts = urlsplit(source.url)
        folder = parts.path.rsplit("/", 1)[0]
        path = parts.path if file.name == file_name(source.url) else f"{folder}/{file.name}"
        url = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
        return Remote(url, file.name, file.size, file.sha256)


def file_name(url: str) -> str:
    """Last part of an address's path."""
    return unquote(urlsplit(url).path).rsplit("/", 1)[-1]
