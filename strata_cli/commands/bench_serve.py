"""bench serve: many clients against a running server (ours or any with /v1/completions), and what they saw."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import typer

from strata_cli.app import App
from strata_cli.once import check_writable, write_whole
from strata_cli.output import Output
from strata_engine.errors import CheckFailed, ServerError, UsageError
from strata_engine.paths import expand

_METRICS = ("ttft", "tpot", "itl", "e2el")
_NAMES = {"ttft": "first token", "tpot": "per token", "itl": "between chunks", "e2el": "whole request"}


def serve(
    context: typer.Context,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="Server; default: the running one")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Default: the server's first")] = None,
    requests: Annotated[
        int, typer.Option("--num-prompts", metavar="N", min=1, max=1_000_000, help="Requests in all")
    ] = 32,
    concurrency: Annotated[int, typer.Option("--concurrency", metavar="N", min=1, max=10_000, help="In flight")] = 8,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="X", help="Requests a second, random gaps; default: at once")
    ] = None,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", metavar="N", min=1, max=1_000_000, help="Length of each prompt")
    ] = 128,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", min=1, max=1_000_000, help="Length of each answer")
    ] = 64,
    percentiles: Annotated[
        str, typer.Option("--percentiles", metavar="P,..", help="Percentiles to report")
    ] = "50,90,95,99",
    goodput: Annotated[
        list[str] | None,
        typer.Option("--goodput", metavar="NAME:MS", help="Limit a counted request must meet: ttft:500 (repeat)"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of prompts and gaps")] = 0,
    file: Annotated[str | None, typer.Option("--output", metavar="FILE", help="Write the JSON result there")] = None,
) -> int:
    """Load a running server with streamed completions of fixed length and report latencies and throughput."""
    app = App.of(context)
    marks = _percentiles(percentiles)
    limits = _limits(goodput or [])
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise UsageError(f"--rate {rate}: not a positive number", "leave it out to send all at once")
    target = expand(file) if file else None
    if target is not None:
        check_writable(target)
    from strata_engine.bench import load

    base, key = _server(app, url)
    plan = load.LoadPlan(
        url=base,
        model=model or load.first_model(base, key),
        requests=requests,
        concurrency=concurrency,
        rate=rate if rate is not None else math.inf,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        seed=seed,
        api_key=key,
    )
    app.output.note(f"{requests} requests to {base}, model {plan.model}, {concurrency} in flight")
    found = load.summary(load.measure(plan, _progress(app.output, requests)), marks, limits)
    if target is not None:
        write_whole(target, json.dumps(found, ensure_ascii=False, indent=2) + "\n")
    _show(app.output, found)
    if found["failed"]:
        app.output.warn(f"{found['failed']} of {requests} requests failed: {'; '.join(found['errors'])}")
        return CheckFailed.exit_code
    return 0


def _server(app: App, url: str | None) -> tuple[str, str]:
    from strata_cli.address import parse_address
    from strata_cli.server_record import read_record

    key = str(app.settings.get("api_key") or "")
    if url is not None:
        return parse_address(url).url, key
    if app.settings.origin("host") != "built-in":
        return parse_address(str(app.settings.get("host")), int(app.settings.get("port"))).url, key
    record = read_record(app.paths.server_file)
    if record is None or record.unix:
        raise ServerError("no server is running on a TCP port", "llmrun serve, or --url URL")
    return record.address.url, key


def _percentiles(text: str) -> list[float]:
    try:
        values = [float(piece) for piece in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--percentiles {text}: not numbers", "50,90,99") from error
    if not all(0 <= value <= 100 for value in values):
        raise UsageError(f"--percentiles {text}: outside 0 to 100")
    return values


def _limits(texts: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for piece in " ".join(texts).replace(",", " ").split():
        name, _, value = piece.partition(":")
        try:
            limit = float(value)
        except ValueError as error:
            raise UsageError(f"--goodput {piece}: not NAME:MILLISECONDS", "ttft:500 tpot:50") from error
        if name not in _METRICS or not limit > 0:
            raise UsageError(f"--goodput {piece}: not one of {', '.join(_METRICS)} with a limit above 0")
        found[name] = limit
    return found


def _progress(output: Output, total: int) -> Any:
    step = max(1, total // 10)

    def done(count: int) -> None:
        if count % step == 0 and count < total:
            output.note(f"{count} of {total}")

    return done


def _show(output: Output, found: dict[str, Any]) -> None:
    if output.json_mode:
        output.data(found["schema"], {name: value for name, value in found.items() if name != "schema"})
        return
    rows = [
        ("requests", f"{found['requests']} ({found['failed']} failed) in {found['wall_s']} s"),
        ("requests a second", str(found["requests_per_s"])),
        ("output tokens a second", str(found["output_tps"])),
        ("all tokens a second", str(found["total_tps"])),
    ]
    if "goodput" in found:
        rows.append(("requests a second within limits", str(found["goodput"]["requests_per_s"])))
    output.table((), rows)
    names = [name for name in found["metrics_ms"]["ttft"] if name != "n"]
    table = [[f"{_NAMES[m]} ({m})", *(str(v.get(n, "")) for n in names)] for m, v in found["metrics_ms"].items()]
    if names:
        output.line()
        output.table(["MILLISECONDS", *(n.upper() for n in names)], table, right=range(1, len(names) + 1))
