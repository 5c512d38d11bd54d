"""LocalService: several engines by name in this process. Loading is one at a time; everything else runs beside it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from strata_engine.chat import ChatRequest, TokenRequest
from strata_engine.config import EngineConfig, SamplingParams
from strata_engine.errors import NotFound
from strata_engine.registry.catalog import Catalog
from strata_engine.registry.drafters import with_drafter
from strata_engine.registry.files import ModelFiles
from strata_engine.registry.reference import parse
from strata_engine.registry.resolve import Missing, not_registered, resolve
from strata_engine.registry.store import Store
from strata_engine.runtime.api import Load, LoadedModel, Report, Sink
from strata_engine.runtime.engine import Engine
from strata_engine.runtime.opening import BackendFactory
from strata_engine.runtime.stream import SequenceStream
from strata_engine.text.base import TextRules


@dataclass(frozen=True)
class _Entry:
    engine: Engine
    model: LoadedModel
    names: frozenset[str]  # every spelling that found it, lower case

    def answers_to(self, name: str) -> bool:
        return name.lower() in self.names


class LocalService:
    """The Service of runtime/api.py over a catalog and a store. `backends` makes a backend for a device name."""

    def __init__(self, catalog: Catalog, store: Store, config: EngineConfig, backends: BackendFactory) -> None:
        self._catalog, self._store, self._config, self._backends = catalog, store, config, backends
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()  # guards _entries; never held while a model loads or ends
        self._loading = threading.Lock()

    def __enter__(self) -> LocalService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def loaded(self) -> list[LoadedModel]:
        """What is loaded, oldest first."""
        with self._lock:
            return [entry.model for entry in self._entries.values()]

    def load(self, model: str, config: EngineConfig | None = None) -> LoadedModel:
        """Load a model, or find it (`config` then has no effect). Raises NotFound, and what opening raises."""
        found = self._find(model)
        if found is not None:
            return found.model
        if not model:
            raise self._not_loaded("")
        with self._loading:
            found = self._find(model)
            if found is not None:
                return found.model
            files = self._resolve(model)
            known = self._find(files.reference)
            if known is not None:
                return self._also(known, model).model
            return self._open(model, files, config or self._config).model

    def load_files(self, files: ModelFiles, config: EngineConfig | None = None) -> LoadedModel:
        """Load a model whose files are known already, as tests and tools do."""
        with self._loading:
            known = self._find(files.reference)
            return (known or self._open(files.name, files, config or self._config)).model

    def _resolve(self, model: str) -> ModelFiles:
        found = resolve(parse(model), self._catalog, self._store)
        if isinstance(found, Missing):
            if found.local_only:
                raise not_registered(found)
            raise NotFound(f"{found.name} is not on this disk", hint=f"llmrun pull {found.name}")
        return found

    def _open(self, asked: str, files: ModelFiles, config: EngineConfig) -> _Entry:
        files, config = with_drafter(files, config, self._catalog, self._store)
        engine = Engine.open(files, config, self._backends(config.device))
        names = frozenset(name.lower() for name in (asked, files.name, files.reference) if name)
        entry = _Entry(engine, _describe(engine), names)
        with self._lock:
            self._entries[files.reference] = entry
        return entry

    def _also(self, entry: _Entry, name: str) -> _Entry:
        """Remember one more spelling of a loaded model."""
        more = _Entry(entry.engine, entry.model, entry.names | {name.lower()})
        with self._lock:
            self._entries[entry.model.reference] = more
        return more

    def unload(self, model: str, timeout_s: float = 30.0) -> int:
        """Finish or cancel its sequences and free it; bytes freed. Raises NotFound."""
        entry = self._entry(model)
        with self._lock:
            self._entries.pop(entry.model.reference, None)
        memory = entry.engine.report().memory
        entry.engine.close(timeout_s)
        return sum(memory[key] for key in ("weights_packed_bytes", "weights_mapped_bytes", "kv_bytes", "state_bytes"))

    def stream(
        self,
        model: str,
        request: ChatRequest | TokenRequest,
        params: SamplingParams,
        sink: Sink | None = None,
    ) -> SequenceStream:
        """Start a sequence on a loaded model. Raises NotFound, RequestRefused, ContextExceeded, QueueFull."""
        return self._entry(model).engine.submit(request, params, sink)

    def text(self, model: str) -> TextRules:
        """The model's text rules. Raises NotFound."""
        return self._entry(model).engine.parts.rules

    def load_numbers(self, model: str) -> Load:
        """Live numbers of one engine. Raises NotFound."""
        return self._entry(model).engine.load_numbers()

    def report(self, model: str) -> Report:
        """Choices, memory and speed of one engine. Raises NotFound."""
        return self._entry(model).engine.report()

    def close(self) -> None:
        """Cancel everything and free all models."""
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
        for entry in entries:
            entry.engine.close()

    def _find(self, model: str) -> _Entry | None:
        with self._lock:
            entries = list(self._entries.values())
        if not model:
            return entries[0] if len(entries) == 1 else None
        return next((entry for entry in entries if entry.answers_to(model)), None)

    def _entry(self, model: str) -> _Entry:
        found = self._find(model)
        if found is None:
            raise self._not_loaded(model)
        return found

    def _not_loaded(self, model: str) -> NotFound:
        names = [entry.name for entry in self.loaded()]
        listed = f"loaded: {', '.join(names)}" if names else "no model is loaded"
        text = f"model {model!r} is not loaded" if model else "no model was named, and not exactly one is loaded"
        return NotFound(text, hint=listed, details={"loaded": names})


def _describe(engine: Engine) -> LoadedModel:
    parts = engine.parts
    config = parts.loaded.model.config
    able = ["completion"] if parts.rules.chat is None else ["completion", "chat"]
    able += ["vision"] if parts.eye is not None and parts.rules.chat is not None else []
    return LoadedModel(
        name=parts.files.name,
        reference=parts.files.reference,
        root=parts.files.root,
        architecture=config.architecture,
        quant=parts.files.variant or parts.loaded.quant,
        parameters=parts.loaded.parameters,
        context_tokens=engine.context_tokens,
        train_context_tokens=config.train_context_tokens,
        vocab_size=config.vocab_size,
        max_sequences=parts.config.max_sequences,
        size_bytes=parts.files.size_bytes,
        device=parts.device.name,
        capabilities=tuple(able),
        loaded_at=time.time(),
        defaults=parts.defaults,
    )
