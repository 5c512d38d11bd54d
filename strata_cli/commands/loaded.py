"""ps and stop: the models in the memory of the running server."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from strata_cli.app import App
from strata_cli.output import Output
from strata_engine.errors import ServerError, UsageError
from strata_engine.units import format_bytes, parse_seconds

_SERVER = typer.Option("--server", metavar="URL", help="Ask this server")


def ps(context: typer.Context, server: Annotated[str | None, _SERVER] = None) -> int:
    """Show the loaded models of the running server; nothing runs, nothing is listed."""
    from strata_cli.client import find_server

    app = App.of(context)
    service = find_server(app, server)
    if service is None:
        return _show(app.output, None, {"models": [], "available": []})
    try:
        return _show(app.output, service.url, service.status())
    finally:
        service.close()


def stop(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="Loaded model")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Unload every model")] = False,
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="Let answers end for this long")] = "30s",
    server: Annotated[str | None, _SERVER] = None,
) -> int:
    """Unload a model of the running server; waits until its memory is free."""
    from strata_cli.client import find_server

    app = App.of(context)
    if (model is None) != everything:
        raise UsageError("name one model, or --all", "llmrun ps")
    service = find_server(app, server)
    if service is None:
        raise ServerError("no server is running", "llmrun serve")
    try:
        body = {"all": True} if everything else {"model": model}
        found = service.unload_some({**body, "timeout_s": _seconds(timeout)})
    finally:
        service.close()
    if app.output.json_mode:
        app.output.data("llmrun.stop.v1", {"models": found["models"], "freed_bytes": found["freed_bytes"]})
    else:
        names = ", ".join(found["models"]) or "nothing was loaded"
        app.output.line(f"{names}: {format_bytes(found['freed_bytes'])} freed" if found["models"] else names)
    return 0


def _seconds(text: str) -> float:
    try:
        return min(parse_seconds(text), 86400.0)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from error


def _show(output: Output, url: str | None, status: dict[str, Any]) -> int:
    models = status["models"]
    if output.json_mode:
        output.data("llmrun.ps.v1", {"server": url, "models": models, "available": status["available"]})
        return 0
    headers = ("NAME", "DEVICE", "SIZE", "CTX", "RUNNING", "WAITING", "T/S", "ACCEPT")
    output.table(headers, [_row(model) for model in models], right=(2, 3, 4, 5, 6, 7))
    if url is None:
        output.note("no server is running (llmrun serve)")
    return 0


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    load = model["load"]
    speed = load["generation_tokens_total"] / load["decode_s_total"] if load["decode_s_total"] > 0 else 0.0
    return (
        model["shown"],
        model["device"],
        format_bytes(model["size_bytes"]),
        str(model["context_tokens"]),
        f"{load['running']}/{model['max_sequences']}",
        str(load["waiting"]),
        f"{speed:.1f}" if speed else "-",
        _accept_length(load),
    )


def _accept_length(load: dict[str, Any]) -> str:
    """Tokens a decode step of a sequence, 1 without accepted drafts; "-" where nothing was drafted."""
    steps = load.get("spec_steps_total", 0)
    return f"{load['spec_tokens_total'] / steps:.2f}" if steps and load["spec_rounds_total"] else "-"
