"""Hugging Face: listing, addresses, what its refusals mean, and its cache on this disk.

Every call goes to the endpoint, file addresses too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from strata_engine.errors import AuthError, LlmrunError, NetworkError, NotFound
from strata_engine.registry.entries import CatalogFile, Source, sha256_or_nothing
from strata_engine.registry.hubs.base import HubSettings, Listing
from strata_engine.registry.hubs.json_api import get_json
from strata_engine.registry.limits import Patience
from strata_engine.registry.remote import Remote
from strata_engine.registry.web import Explain, Target


class HuggingFace:
    """See `Hub`."""

    def __init__(self, settings: HubSettings, client: httpx.Client, patience: Patience) -> None:
        self.settings, self.client, self.patience = settings, client, patience
        self.endpoint = settings.hf_endpoint.rstrip("/")

    def address(self, source: Source) -> str:
        """The repository's API address."""
        return f"{self.endpoint}/api/models/{source.repo}"

    def listing(self, source: Source) -> Listing:
        """Files with sizes and, for large ones, sha256, at the commit of the revision."""
        revision = quote(source.revision or "main", safe="")
        url = f"{self.address(source)}/revision/{revision}?blobs=true"
        found = get_json(self.client, Target(url, self._auth(), self._explain(source)), self.patience)
        try:
            return Listing(str(found["sha"]), tuple(map(_file, found["siblings"])))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NetworkError(
                f"{self.endpoint}: not a listing of {source.repo} ({error!r})", "check HF_ENDPOINT"
            ) from error

    def remote(self, source: Source, revision: str, file: CatalogFile) -> Remote:
        """The file's address at a commit."""
        commit = quote(revision or source.revision or "main", safe="")
        url = f"{self.endpoint}/{source.repo}/resolve/{commit}/{quote(file.path)}"
        return Remote(url, file.name, file.size, file.sha256, self._auth(), explain=self._explain(source))

    def _auth(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.settings.hf_token}"} if self.settings.hf_token else {}

    def _explain(self, source: Source) -> Explain:
        page, has_token = f"{self.endpoint}/{source.repo}", bool(self.settings.hf_token)

        def explain(status: int, headers: Mapping[str, str]) -> LlmrunError | None:
            return _refusal(status, headers.get("x-error-code", ""), source, page, has_token)

        return explain


def _refusal(status: int, code: str, source: Source, page: str, has_token: bool) -> LlmrunError | None:
    repo = source.repo
    if code == "RevisionNotFound":
        return NotFound(f"{repo} has no revision {source.revision or 'main'}", f"see {page}")
    if code == "EntryNotFound":
        return NotFound(f"{repo} has no such file", f"see {page}")
    if status == 404 or code == "RepoNotFound":
        more = "" if has_token else ", or it is private: then set HF_TOKEN"
        return NotFound(f"{repo}: no such repository on the hub{more}", f"see {page}")
    if status not in (401, 403):
        return None
    if not has_token:
        what = "its licence must be accepted" if code == "GatedRepo" else "it is private or gated"
        return AuthError(
            f"{repo}: no token is set, and {what}", f"open {page}, then set HF_TOKEN to a token with read access"
        )
    if code == "GatedRepo" and status == 403:
        return AuthError(f"{repo}: the licence was not accepted by the owner of the token", f"accept it at {page}")
    return AuthError(
        f"{repo}: the token has no access (HTTP {status})", f"a token whose owner can open {page}, in HF_TOKEN"
    )


def _file(found: Any) -> CatalogFile:
    large = found.get("lfs") or {}
    size = int(large.get("size") or found.get("size") or 0)
    return CatalogFile(str(found["rfilename"]), "weights", max(0, size), sha256_or_nothing(large.get("sha256")))


def cached_blob(cache: Path | None, repo: str, sha256: str, size: int) -> Path | None:
    """A file of the Hugging Face cache that is stored under this sha256 and has this size; content not yet checked."""
    if cache is None or not sha256:
        return None
    folder = "models--" + repo.replace("/", "--") if repo else "models--*"
    try:
        for path in cache.glob(f"{folder}/blobs/{sha256}"):
            if path.is_file() and size in (0, path.stat().st_size):
                return path
    except OSError:
        return None
    return cached_blob(cache, "", sha256, size) if repo else None
