"""The hubs of one pull and their clients, made when first needed; and whether a source answers at all."""

from __future__ import annotations

import contextlib
import queue
import threading
from dataclasses import replace

import httpx

from strata_engine.errors import LlmrunError, NetworkError
from strata_engine.registry.download import TransferOptions
from strata_engine.registry.entries import Source
from strata_engine.registry.hubs.base import Hub, HubSettings
from strata_engine.registry.hubs.direct import Direct
from strata_engine.registry.hubs.huggingface import HuggingFace
from strata_engine.registry.hubs.index import PackageIndex
from strata_engine.registry.hubs.modelscope import ModelScope
from strata_engine.registry.hubs.pip_settings import pip_settings
from strata_engine.registry.web import Retry, Target, make_client, opened

_LISTING_TRIES = 3  # a person waits for a listing; a long transfer may be more patient


class Hubs:
    """Close it when the pull is over."""

    def __init__(self, settings: HubSettings, options: TransferOptions, offline: bool = False) -> None:
        self.settings, self.options, self.offline = settings, options, offline
        self._clients: dict[str, httpx.Client] = {}
        self._hubs: dict[str, Hub] = {}

    def client(self, ca_file: str = "") -> httpx.Client:
        """The client that trusts one more certificate file. Raises NetworkError when offline."""
        if self.offline:
            raise NetworkError("the network is needed, but it is switched off (--offline or LLMRUN_OFFLINE)",
                               "run it again without --offline")  # fmt: skip
        wanted = ca_file or self.settings.ca_file
        if wanted not in self._clients:
            self._clients[wanted] = make_client(ca_file=wanted, connections=self.options.connections)
        return self._clients[wanted]

    def hub(self, source: Source) -> Hub:
        """What serves a source. Raises NetworkError when offline."""
        if source.kind not in self._hubs:
            self._hubs[source.kind] = self._make(source.kind)
        return self._hubs[source.kind]

    def _make(self, kind: str) -> Hub:
        patience = replace(self.options.patience, tries=min(_LISTING_TRIES, self.options.patience.tries))
        if kind == "index":
            self.client()
            return PackageIndex(pip_settings, self.client, patience)
        if kind == "url":
            return Direct()
        if kind == "modelscope":
            return ModelScope(self.settings, self.client(), patience)
        return HuggingFace(self.settings, self.client(), patience)

    def silence(self, source: Source, budget_s: float) -> str:
        """Why a source does not answer within the budget; "" when it does, whatever it says."""
        self.client()
        answers: queue.Queue[str] = queue.Queue()
        thread = threading.Thread(target=self._ask, args=(source, budget_s, answers), daemon=True)
        thread.start()
        with contextlib.suppress(queue.Empty):
            return answers.get(timeout=budget_s)
        return f"no answer within {budget_s:g} s"

    def _ask(self, source: Source, budget_s: float, answers: queue.Queue[str]) -> None:
        # A thread of its own, for a name look-up cannot be interrupted.
        try:
            address = self.hub(source).address(source)
            if address:
                with make_client(budget_s, budget_s, self.settings.ca_file) as client:
                    with opened(client, Target(address), {"Range": "bytes=0-0"}):
                        pass
            answers.put("")
        except Retry as fault:
            answers.put(str(fault))
        except LlmrunError as fault:
            answers.put(fault.message)

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
