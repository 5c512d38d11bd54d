"""A model ready to answer: on a running server that has it, else loaded in this process.

The one place of the command line that opens engines; their imports happen here, on demand.
Main flow: reference -> server? -> files on disk (downloaded if need be) -> engine.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata_cli.app import App
from strata_cli.devices import place_of
from strata_cli.flags import LoadFlags, to_engine_config
from strata_cli.prompt import looks_like_model
from strata_cli.specflags import SpecFlags
from strata_cli.speculation import drafter_lines
from strata_engine.errors import DeviceError, LlmrunError, UsageError

if TYPE_CHECKING:
    from strata_backends.base import Backend
    from strata_backends.gpu import Place
    from strata_cli.talkflags import PlaceFlags
    from strata_engine.registry.files import ModelFiles
    from strata_engine.runtime.api import LoadedModel, Service
    from strata_engine.runtime.service import LocalService

_ENGINE = "strata_engine.runtime.service"
_READ_AHEAD_MOST_BYTES = 4 << 30


@dataclass(frozen=True)
class OpenModel:
    """A service with a model in it. `load_s` None: it was loaded before (by a server)."""

    service: Service
    model: LoadedModel
    reference: str
    load_s: float | None


def is_model(app: App, word: str) -> bool:
    """Whether one word names a model: a catalog name, an alias, something downloaded, a path or a hub form."""
    from strata_engine.registry.reference import BadReference, parse

    if looks_like_model(word):
        return True
    try:
        reference = parse(word)
    except BadReference:
        return False
    if reference.kind != "name":
        return not any(c.isspace() for c in word)
    known = {name.lower() for name in model_names(app)}
    return reference.target.lower() in known


def model_names(app: App) -> list[str]:
    """Catalog names, aliases and downloaded models."""
    return [*app.catalog.names(), *local_names(app)]


def local_names(app: App) -> list[str]:
    """Aliases and what is downloaded."""
    return sorted({m.base for m in app.store.manifests()} | set(app.store.aliases()))


def default_reference(app: App) -> str:
    """The catalog's default model. Raises UsageError when a catalog names none."""
    entry = app.catalog.default
    if entry is None:
        raise UsageError("no model was named and the catalog has no default", "llmrun ls --all")
    return entry.name


def server_names(app: App, place: PlaceFlags) -> list[str]:
    """What the server that would be used can serve; empty without one."""
    if place.no_server or (place.server is None and not _may_run(app)):
        return []
    from strata_cli.client import find_server

    service = find_server(app, place.server)
    if service is None:
        return []
    with contextlib.closing(service):
        status = service.status()
        return [*(m["shown"] for m in status["models"]), *status["available"]]


def import_engine() -> None:
    """Import what loads and runs models; once, then free. Raises UsageError in a directory that was removed."""
    if _ENGINE in sys.modules:
        return
    try:
        os.getcwd()  # torch's own libraries, which the reference kernels need, end the process when there is none
    except FileNotFoundError as error:
        raise UsageError("the current directory no longer exists", "cd to one that does") from error
    with _collecting_later():
        importlib.import_module(_ENGINE)


@contextmanager
def _collecting_later() -> Iterator[None]:
    """Modules and vocabularies are many objects that stay: not worth walking again and again, nor ever after."""
    import gc

    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def open_service(app: App, load: LoadFlags, spec: SpecFlags | None = None) -> LocalService:
    """A service of this process, without a model in it."""
    config = to_engine_config(app, load, spec)
    import_engine()
    from strata_engine.runtime.service import LocalService

    return LocalService(app.catalog, app.store, config, backend_factory(app))


def open_backend(device: str, place: Place | None = None) -> Backend:
    """The device of this name, or the best one for "auto". Raises DeviceError with every candidate's reason."""
    from strata_backends.probe import choose

    try:
        backend, verdicts = choose(device, place) if place else choose(device)
    except ValueError as error:
        raise UsageError(str(error), "llmrun hw shows what is there") from error
    if backend is None:
        # The processor's own verdict only says that something else was asked for.
        asked = [verdict for verdict in verdicts if verdict.name != "cpu"] or verdicts
        remedies = [verdict.remedy for verdict in asked if verdict.remedy]
        reasons = "; ".join(f"{verdict.name}: {verdict.reason}" for verdict in asked)
        raise DeviceError(f"no usable device: {reasons}", remedies[0] if remedies else "llmrun doctor")
    return backend


def backend_factory(app: App) -> Callable[[str], Backend]:
    """`open_backend` on this machine, by this run's environment."""
    place = place_of(app)
    return lambda device: open_backend(device, place)


def find_files(app: App, reference: str) -> ModelFiles:
    """The files of a model, downloaded first when they are missing."""
    from strata_cli.fetch import ensure_present

    files = ensure_present(app, reference)
    for note in files.notes:
        app.output.warn(note)
    _read_ahead(files)
    return files


@contextmanager
def opened(
    app: App, reference: str, load: LoadFlags, place: PlaceFlags, spec: SpecFlags = SpecFlags()
) -> Iterator[OpenModel]:
    """The model, ready; closed at the end. Raises NotFound, ServerError, CorruptFile, OutOfMemory and their kin."""
    if not reference and place.server is not None:
        reference = next(iter(server_names(app, place)), "")
    reference = reference or default_reference(app)
    remote = _on_server(app, reference, (load, spec) == (LoadFlags(), SpecFlags()), place)
    if remote is not None:
        with contextlib.closing(remote.service):
            yield remote
        return
    files = find_files(app, reference)
    with open_service(app, load, spec) as service:
        yield _load(app, service, files, reference)


def switch(app: App, now: OpenModel, reference: str, load: LoadFlags) -> tuple[Service, LoadedModel]:
    """Another model in the same place (/load); the old one is freed once the new one is there."""
    from strata_engine.runtime.service import LocalService

    if not isinstance(now.service, LocalService):
        return now.service, now.service.load(reference)
    files = find_files(app, reference)
    before = now.service.loaded()
    model = _load(app, now.service, files, reference).model
    for old in before:
        if old.reference != model.reference:
            now.service.unload(old.name, 0.0)
    return now.service, model


def _load(app: App, service: LocalService, files: ModelFiles, reference: str) -> OpenModel:
    began = time.perf_counter()
    with _collecting_later():
        model = service.load_files(files)
    report = service.report(model.name)
    for choice in report.choices:
        app.output.detail(f"{choice['what']}: {choice['taken']} ({choice['why']})")
    for line in drafter_lines(report.speculation):
        app.output.note(line)
    for notice in report.notices:
        app.output.warn(notice.message)
    return OpenModel(service, model, reference, time.perf_counter() - began)


def _on_server(app: App, reference: str, any_way: bool, place: PlaceFlags) -> OpenModel | None:
    """A server's copy of the model: always with --server, else when one runs and has it loaded.

    Load flags (not `any_way`) want a model of their own, so they keep away from a server that nobody named.
    """
    if place.server is None and (place.no_server or not any_way or not _may_run(app)):
        return None
    from strata_cli.client import find_server

    service = find_server(app, place.server)
    if service is None:
        return None
    try:
        if place.server is not None:
            if not any_way:
                raise UsageError("load flags have no effect on a server's model", "drop them, or --no-server")
            return OpenModel(service, service.load(reference), reference, None)
        wanted = reference.lower()
        model = next((m for m in service.loaded() if wanted in (m.name.lower(), m.reference.lower())), None)
    except LlmrunError:
        service.close()
        if place.server is not None:
            raise
        app.output.note("the running server does not answer; the model is loaded here")
        return None
    if model is None:
        service.close()
        return None
    app.output.detail(f"{reference} is loaded on the server at {service.url}")
    return OpenModel(service, model, reference, None)


def _may_run(app: App) -> bool:
    """A server was configured or left its record: only then is the HTTP client worth importing."""
    return app.settings.origin("host") != "built-in" or app.paths.server_file.exists()


def _read_ahead(files: ModelFiles) -> None:
    """Ask the system to read the weights while the engine is imported; no harm if it does not know how."""
    if not hasattr(os, "posix_fadvise") or files.size_bytes > _READ_AHEAD_MOST_BYTES:
        return
    for file in files.files:
        with contextlib.suppress(OSError):
            descriptor = os.open(file.path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)
