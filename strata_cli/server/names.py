"""Which model a request means: the names this server answers to, and loading one on first use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata_cli.server.errors import BadField, HttpFault
from strata_engine.config import EngineConfig
from strata_engine.errors import NotFound
from strata_engine.runtime.api import LoadedModel, Service


@dataclass(frozen=True)
class Served:
    """One model this server may run. `reference`: what the Service loads. `names`: all spellings, `shown` first."""

    reference: str
    names: tuple[str, ...]
    config: EngineConfig | None = None

    @property
    def shown(self) -> str:
        """The name lists and replies carry."""
        return self.names[0]


class Names:
    """Thread-safe. `any_model`: every unknown name means the only model. `on_load` hears seconds of each real load.

    `found` lists models beyond the named ones (downloaded ones, when serve was started without names).
    """

    def __init__(
        self,
        service: Service,
        served: Sequence[Served],
        any_model: bool = False,
        found: Callable[[], Sequence[Served]] | None = None,
    ) -> None:
        self._service, self._named, self._any_model, self._found = service, tuple(served), any_model, found
        self._lock = threading.Lock()
        self._loaded_as: dict[str, LoadedModel] = {}  # by the reference served
        self.load_s: dict[str, float] = {}

    def all(self) -> list[tuple[Served, LoadedModel | None]]:
        """Every served model and, when it is loaded, its record."""
        loaded = {model.name: model for model in self._service.loaded()}
        served = self._served(loaded)
        with self._lock:
            known = {reference: model.name for reference, model in self._loaded_as.items()}
        return [(one, loaded.get(known.get(one.reference, one.shown))) for one in served]

    def find(self, name: str) -> Served:
        """By name, alias or reference, each also with `:latest`; "" = the only one. Raises NotFound with the list."""
        served = self._served({model.name: model for model in self._service.loaded()})
        if not name:
            return self._only(served)
        with self._lock:
            known = {reference: (model.name, model.reference) for reference, model in self._loaded_as.items()}
        for wanted in (name, name.removesuffix(":latest")):
            for one in served:
                if wanted in (*one.names, one.reference, *known.get(one.reference, ())):
                    return one
        if self._any_model and served:
            return self._only(served) if len(served) == 1 else served[0]
        shown = [one.shown for one in served]
        raise NotFound(
            f"the model {name[:200]!r} is not served here", _hint(shown), {"param": "model", "models": shown}
        )

    def load(self, served: Served) -> LoadedModel:
        """The loaded model, loading it if need be (slow; not for the event loop)."""
        before = {model.name for model in self._service.loaded()}
        started = time.monotonic()
        model = self._service.load(served.reference, served.config)
        with self._lock:
            self._loaded_as[served.reference] = model
            if model.name not in before:
                self.load_s[served.shown] = time.monotonic() - started
        return model

    def loaded(self, served: Served) -> LoadedModel | None:
        """The record of a served model if it is in memory now."""
        return dict((one.reference, model) for one, model in self.all()).get(served.reference)

    def _served(self, loaded: dict[str, LoadedModel]) -> list[Served]:
        served = [*self._named, *(self._found() if self._found else ())]
        with self._lock:
            loads = [(one, self._loaded_as.get(one.reference)) for one in served]
        known = {model.name if model else one.shown for one, model in loads}
        # Models loaded by another way (our own load route) answer to their name too.
        return [*served, *(Served(m.reference, (m.name,)) for m in loaded.values() if m.name not in known)]

    def _only(self, served: list[Served]) -> Served:
        if len(served) == 1:
            return served[0]
        if not served:
            raise HttpFault(404, "model_not_found", "no model is served here", {"param": "model", "models": []})
        shown = ", ".join(one.shown for one in served)
        raise BadField("model", f"must name one of {shown}", "missing_required_parameter")


def _hint(shown: list[str]) -> str:
    return "one of: " + ", ".join(shown) if shown else ""
