"""bench: speed of a model's forward pass as a table; bench serve: a running server under load."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from strata_cli import local
from strata_cli.app import App
from strata_cli.commands.bench_serve import serve
from strata_cli.commands.bench_spec import compare_methods
from strata_cli.flags import LoadFlags, to_engine_config, with_flags
from strata_cli.keys import KEYS
from strata_cli.once import check_writable, write_whole
from strata_cli.specflags import SpecBenchFlags
from strata_engine.bench import plan as plans
from strata_engine.bench.report import FORMATS
from strata_engine.config import EngineConfig
from strata_engine.errors import UsageError
from strata_engine.paths import expand

_KV_TYPES = ", ".join(KEYS["kv_type"].choices)


class BenchGroup(TyperGroup):
    """`bench MODEL -p 512` without a subcommand: anything that is no subcommand belongs to `speed`."""

    default_command = "speed"  # read by completion, too

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the base class, with `speed` put in front unless another subcommand comes first."""
        first = args[0] if args else ""
        if first not in self.commands:
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    cls=BenchGroup,
    help="Measure speed. `llmrun bench [MODEL] -p 512 -n 128` is short for `llmrun bench speed ...`.",
)
bench.command("serve")(serve)


@bench.command("speed")
@with_flags(SpecBenchFlags)
def speed(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="Without one the default model")] = "",
    prompt: Annotated[str, typer.Option("-p", "--prompt-tokens", metavar="N,..", help="Prompt lengths")] = "512",
    generate: Annotated[str, typer.Option("-n", "--generate-tokens", metavar="N,..", help="Answer lengths")] = "128",
    both: Annotated[
        list[str] | None, typer.Option("--pg", metavar="P,G", help="A prompt and an answer in one test (repeat)")
    ] = None,
    depth: Annotated[str, typer.Option("-d", "--depth", metavar="N,..", help="Tokens of context before a test")] = "0",
    repetitions: Annotated[
        int | None,
        typer.Option("-r", "--repetitions", metavar="N", min=1, max=1000, help="Samples of each test [5, a suite: 2]"),
    ] = None,
    threads: Annotated[str | None, typer.Option("-t", "--threads", metavar="N,..", help="CPU threads")] = None,
    batch: Annotated[
        str | None, typer.Option("-b", "--batch", metavar="N,..", help="Tokens in one prompt step")
    ] = None,
    kv_type: Annotated[str | None, typer.Option("--kv-type", metavar="TYPE,..", help=_KV_TYPES)] = None,
    kernels: Annotated[str | None, typer.Option("--kernels", metavar="NAME,..", help="auto, native, reference")] = None,
    mode: Annotated[str | None, typer.Option("--mode", metavar="NAME,..", help="exact, fast")] = None,
    mmap: Annotated[bool | None, typer.Option("--mmap/--no-mmap", help="Map model files, or read them")] = None,
    spec: SpecBenchFlags = SpecBenchFlags(),
    form: Annotated[str | None, typer.Option("-o", metavar="|".join(FORMATS), help="Form of the result")] = None,
    file: Annotated[str | None, typer.Option("--output", metavar="FILE", help="Write the result there")] = None,
) -> int:
    """Measure prompt and generation speed. Lists and ranges: 128,512  1-8+1  1-64*2; all combinations run.

    With --spec the generation tests run over text, under each method and without drafts in turn; --suite asks
    questions. `llmrun bench` alone means `llmrun bench speed`; `llmrun bench serve --help` is about running servers.
    """
    app = App.of(context)
    wanted = plans.combine(
        plans.numbers(prompt, "-p"), plans.numbers(generate, "-n"), plans.pairs(both or []), plans.numbers(depth, "-d")
    )
    configs = _configs(app, Varied(threads, batch, kv_type, kernels, mode), mmap)
    form = _form(app, form)
    target = expand(file) if file and file != "-" else None
    if target is not None:
        check_writable(target)
    reference = model or local.default_reference(app)
    if spec.wanted:
        text = compare_methods(app, reference, configs, wanted, spec, repetitions, form)
    else:
        text = _run(app, reference, configs, wanted, repetitions or 5, form)
    if target is None:
        app.output.write(text)
    else:
        write_whole(target, text)
    return 0


def _form(app: App, form: str | None) -> str:
    if form is None:
        return {"json": "json", "jsonl": "jsonl"}.get(app.output.mode, "md")
    if form not in FORMATS:
        raise UsageError(f"-o {form}: not one of {', '.join(FORMATS)}", "-o md; a file is named with --output")
    return form


@dataclass(frozen=True)
class Varied:
    """Load flags that bench takes as lists, as typed."""

    threads: str | None
    batch: str | None
    kv_type: str | None
    kernels: str | None
    mode: str | None


def _configs(app: App, varied: Varied, mmap: bool | None) -> list[EngineConfig]:
    def names(text: str | None) -> list[str | None]:
        return list(dict.fromkeys(text.split(","))) if text else [None]

    choices: list[list[Any]] = [
        list(plans.numbers(varied.threads, "--threads")) if varied.threads else [None],
        list(plans.numbers(varied.batch, "--batch")) if varied.batch else [None],
        names(varied.kv_type),
        names(varied.kernels),
        names(varied.mode),
    ]
    return [
        to_engine_config(app, LoadFlags(threads=t, batch=b, kv_type=kv, kernels=k, mode=m, mmap=mmap))
        for t, b, kv, k, m in itertools.product(*choices)
    ]


def _run(
    app: App, reference: str, configs: list[EngineConfig], tests: list[plans.SpeedTest], repetitions: int, form: str
) -> str:
    files = local.find_files(app, reference)
    local.import_engine()
    from strata_cli import __version__
    from strata_engine.bench import host
    from strata_engine.bench.report import Result, Row, render
    from strata_engine.bench.session import Session, SpeedPlan

    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    plan = SpeedPlan(files, tuple(configs), tuple(tests), repetitions)
    session = Session(plan, local.backend_factory(app), app.output.note)
    rows: list[Row] = []
    try:
        rows.extend(session.rows())
    except KeyboardInterrupt:
        if not rows:
            raise
        app.output.warn(f"stopped; {len(rows)} of {len(tests) * len(configs)} rows were measured")
    limits = {"read_bandwidth_gb_s": session.bandwidth_gb_s, "product_gop_s": session.product_gop_s}
    machine = host.machine() | limits
    return render(Result(tuple(rows), session.model, machine, host.versions(__version__), host.commit(), started), form)
