"""ModelScope: listing and addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from strata_engine.errors import AuthError, LlmrunError, NetworkError, NotFound
from strata_engine.registry.entries import CatalogFile, Source, sha256_or_nothing
from strata_engine.registry.hubs.base import HubSettings, Listing
from strata_engine.registry.hubs.json_api import get_json
from strata_engine.registry.limits import Patience
from strata_engine.registry.remote import Remote
from strata_engine.registry.web import Explain, Target

_DEFAULT_REVISION = "master"


class ModelScope:
    """See `Hub`."""

    def __init__(self, settings: HubSettings, client: httpx.Client, patience: Patience) -> None:
        self.settings, self.client, self.patience = settings, client, patience
        endpoint = settings.modelscope_endpoint.rstrip("/")
        self.endpoint = endpoint if "://" in endpoint else f"https://{endpoint}"

    def address(self, source: Source) -> str:
        """The repository's API address."""
        return f"{self.endpoint}/api/v1/models/{source.repo}"

    def listing(self, source: Source) -> Listing:
        """Files with sizes and sha256 at the revision."""
        revision = source.revision or _DEFAULT_REVISION
        query = urlencode({"Revision": revision, "Recursive": "true"})
        target = Target(f"{self.address(source)}/repo/files?{query}", self._auth(), self._explain(source))
        found = get_json(self.client, target, self.patience)
        try:
            if found.get("Code") not in (200, None):
                raise NotFound(f"{source.repo}: {found.get('Message') or 'not found'} (ModelScope)")
            files = [f for f in found["Data"]["Files"] if f.get("Type") != "tree"]
            return Listing(revision, tuple(map(_file, files)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NetworkError(f"{self.endpoint}: not a listing of {source.repo} ({error!r})",
                               "check MODELSCOPE_ENDPOINT") from error  # fmt: skip

    def remote(self, source: Source, revision: str, file: CatalogFile) -> Remote:
        """The file's address at a revision."""
        commit = quote(revision or source.revision or _DEFAULT_REVISION, safe="")
        url = f"{self.endpoint}/models/{source.repo}/resolve/{commit}/{quote(file.path)}"
        return Remote(url, file.name, file.size, file.sha256, self._auth(), explain=self._explain(source))

    def _auth(self) -> dict[str, str]:
        token = self.settings.modelscope_token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _explain(self, source: Source) -> Explain:
        page, has_token = f"{self.endpoint}/models/{source.repo}", bool(self.settings.modelscope_token)

        def explain(status: int, _headers: Mapping[str, str]) -> LlmrunError | None:
            if status == 404:
                return NotFound(f"{source.repo}: no such repository or file on ModelScope", f"see {page}")
            if status in (401, 403):
                why = "the token has no access" if has_token else "no token is set, and it is private or gated"
                return AuthError(f"{source.repo}: {why} (HTTP {status})", f"open {page}, then set MODELSCOPE_API_TOKEN")
            return None

        return explain


def _file(found: Any) -> CatalogFile:
    size = max(0, int(found.get("Size") or 0))
    return CatalogFile(str(found["Path"]), "weights", size, sha256_or_nothing(found.get("Sha256")))
