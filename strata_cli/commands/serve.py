"""serve: models over HTTP until a signal.

Order: flags are checked, the socket is bound (a taken port is known at once), models are loaded, then the ready line.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata_cli.app import App
from strata_cli.flags import LoadFlags, to_engine_config, with_flags
from strata_cli.serveflags import AccessFlags, PlaceToServe, RequestFlags, address_of, options_of
from strata_cli.server_record import ServerRecord, remove_record, write_record
from strata_cli.specflags import SpecFlags
from strata_cli.speculation import drafter_lines
from strata_engine.errors import UsageError
from strata_engine.paths import expand

if TYPE_CHECKING:
    import socket

    from strata_cli.server.names import Names, Served
    from strata_cli.server.state import ServerState
    from strata_engine.config import EngineConfig
    from strata_engine.runtime.api import Service


@with_flags(PlaceToServe, AccessFlags, RequestFlags, LoadFlags, SpecFlags)
def serve(
    context: typer.Context,
    place: PlaceToServe,
    access: AccessFlags,
    requests: RequestFlags,
    load: LoadFlags,
    spec: SpecFlags,
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="Models; none = all downloaded")
    ] = None,
    alias: Annotated[
        list[str] | None, typer.Option("--alias", metavar="NAME[=MODEL]", help="Name that clients see (repeat)")
    ] = None,
    preload: Annotated[
        bool, typer.Option("--preload/--no-preload", help="Load the named models now, or on first use")
    ] = True,
) -> int:
    """Serve models over HTTP: the OpenAI routes /v1/chat/completions, /v1/completions and /v1/models, and more."""
    app = App.of(context)
    options = options_of(app, place, access, requests)
    config = replace(to_engine_config(app, load, spec), max_queue=requests.max_queue)
    named = named_models(models or [], alias or [])
    if load.mmproj not in (None, "none") and len(named) != 1:
        raise UsageError(f"--mmproj goes with one model, {len(named)} are named", "name one model, or leave it out")
    if spec.draft and len(named) != 1:
        raise UsageError(f"--draft goes with one model, {len(named)} are named", "name one model, or leave it out")
    tls = place.tls
    listener, record = _bind(app, place)
    try:
        from strata_cli.local import find_files, open_service
        from strata_cli.server.names import Names
        from strata_cli.server.state import ServerState

        called = {model: find_files(app, model).name for model in named}
        served = served_models(named, called, config)
        with open_service(app, load, spec) as service:
            names = Names(service, served, requests.any_model, None if served else _downloaded(app, config))
            if preload:
                _load_all(app, service, names, served)
            state = ServerState.create(service, names, options)
            return run_server(app, state, listener, record, tls)
    finally:
        listener.close()
        remove_record(app.paths.server_file, os.getpid())
        if record.unix:
            Path(record.unix).unlink(missing_ok=True)


def named_models(models: Sequence[str], aliases: Sequence[str]) -> dict[str, list[str]]:
    """Each reference with the aliases given to it. Raises UsageError."""
    given: dict[str, list[str]] = {model: [] for model in models}
    for text in aliases:
        name, equals, model = text.partition("=")
        if not equals and len(given) == 1:
            model = next(iter(given))
        if not name or model not in given:
            raise UsageError(f"--alias {text}: names no model of this command", "--alias NAME=MODEL")
        given[model].append(name)
    names = [name for model, extra in given.items() for name in (*extra, model)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"the name {twice} is given twice")
    return given


def served_models(named: dict[str, list[str]], called: dict[str, str], config: EngineConfig) -> list[Served]:
    """The names each model answers to; shown is an alias, else a file's own name (`called`) in place of its path."""
    from strata_cli.server.names import Served

    served: list[Served] = []
    for model, aliases in named.items():
        own = called[model]
        unique = list(called.values()).count(own) == 1
        short = [own] if unique and ("/" in model or "\\" in model) and expand(model).exists() else []
        served.append(Served(model, tuple(dict.fromkeys((*aliases, *short, model))), config))
    return served


def _downloaded(app: App, config: EngineConfig):  # noqa: ANN202 - a closure for Names
    from strata_cli.local import local_names
    from strata_cli.server.names import Served

    return lambda: [Served(name, (name,), config) for name in local_names(app)]


def _bind(app: App, place: PlaceToServe) -> tuple[socket.socket, ServerRecord]:
    from strata_cli.server.sockets import bind_tcp, bind_unix

    address = address_of(app, place)
    if place.unix:
        path = Path(place.unix).absolute()
        record = ServerRecord(os.getpid(), "", 0, address.scheme, address.prefix, str(path))
        return bind_unix(path), record
    listener = bind_tcp(address)
    port = listener.getsockname()[1]
    return listener, ServerRecord(os.getpid(), address.host, port, address.scheme, address.prefix)


def _load_all(app: App, service: Service, names: Names, served: Sequence[Served]) -> None:
    for one in served:
        model = names.load(one)
        report = service.report(model.name)
        for choice in report.choices:
            app.output.detail(f"{one.shown}: {choice['what']}: {choice['taken']} ({choice['why']})")
        for line in drafter_lines(report.speculation):
            app.output.note(f"{one.shown}: {line}")
        for notice in report.notices:
            app.output.warn(notice.message)


def _leave_record(app: App, record: ServerRecord) -> None:
    try:
        write_record(app.paths.server_file, record)
    except OSError as error:  # a read-only or full home is no reason not to serve
        app.output.warn(f"{app.paths.server_file} cannot be written ({error.strerror}): ps, stop and chat find this "
                        "server by LLMRUN_HOST only")  # fmt: skip


def run_server(
    app: App, state: ServerState, listener: socket.socket, record: ServerRecord, tls: tuple[str, str] | None
) -> int:
    """Serve until a signal; the exit code. Tests call it with a Service of their own."""
    from strata_cli.server.app import create_app
    from strata_cli.server.run import Server

    url = f"unix:{record.unix}" if record.unix else record.address.url

    def ready() -> None:
        _leave_record(app, record)
        shown = [one.shown for one, _ in state.names.all()]
        if app.output.json_mode:
            app.output.data("llmrun.serve.v1", {"url": url, "pid": record.pid, "models": shown})
        else:
            app.output.write(f"llmrun is ready on {url} ({', '.join(shown) or 'no model downloaded yet'})\n")

    def drain(count: int) -> None:
        app.output.note(f"stopping: {count} open request{'s' if count > 1 else ''} may go on for "
                        f"{state.options.drain_s:g} s; Ctrl-C ends them now")  # fmt: skip

    state.log_line = app.output.note
    server = Server(create_app(state), state, ready, drain, tls)
    try:
        server.run([listener])
    finally:
        state.close()
    return 128 + server.stopped_by if server.stopped_by else 0
