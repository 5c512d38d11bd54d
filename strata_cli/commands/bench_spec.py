"""bench --spec and --suite: speculation methods side by side on questions, or on the generation tests over text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from strata_cli import local
from strata_cli.app import App
from strata_cli.devices import place_of
from strata_cli.specflags import SpecBenchFlags
from strata_engine.bench.plan import SpeedTest
from strata_engine.config import EngineConfig, SpecConfig
from strata_engine.errors import UsageError

if TYPE_CHECKING:
    from strata_engine.bench.compare import CasesOf
    from strata_engine.bench.suites import Case
    from strata_engine.registry.files import ModelFiles
    from strata_engine.runtime.engine import Engine

_QUESTIONS, _QUESTION_TOKENS = 16, 1024
_REPETITIONS = 2  # the first one records steps of new shapes
_WITHOUT_FILES = ("none", "mtp", "ngram", "suffix")


def compare_methods(
    app: App,
    reference: str,
    configs: Sequence[EngineConfig],
    tests: Sequence[SpeedTest],
    flags: SpecBenchFlags,
    repetitions: int | None,
    form: str,
) -> str:
    """The printed comparison. Raises UsageError for what cannot be compared, and what opening the model raises."""
    if len(configs) > 1:
        raise UsageError(f"--spec compares methods under one setting, {len(configs)} were given", "one value a flag")
    generating = [test for test in tests if test.generate_tokens]
    if not flags.suite and not generating:
        raise UsageError("--spec: prompts alone are the same with every method", "-n 128, or --suite gsm8k-like")
    files = local.find_files(app, reference)
    local.import_engine()
    from strata_cli import __version__
    from strata_engine.bench import compare_report, host
    from strata_engine.bench.compare import ComparePlan, CompareRow, Comparison

    tokens = _QUESTION_TOKENS if flags.suite else max(t.depth_tokens + t.tokens for t in generating)
    config = replace(configs[0], context_tokens=tokens + 2 * configs[0].page_tokens, max_sequences=1)
    cases = [_suite(flags)] if flags.suite else [_test(test) for test in generating]
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    opener = _Opener(app, files, config, flags)
    plan = ComparePlan(flags.methods, tuple(cases), opener, repetitions or (_REPETITIONS if flags.suite else 5))
    session = Comparison(plan, app.output.note, _described)
    rows: list[CompareRow] = []
    try:
        rows.extend(session.rows())
    except KeyboardInterrupt:
        if not rows:
            raise
        app.output.warn(f"stopped; {len(rows)} of {len(cases) * len(flags.methods)} rows were measured")
    tested = [row.test for row in rows]
    rows.sort(key=lambda row: tested.index(row.test))
    versions, commit = host.versions(__version__), host.commit()
    found = compare_report.Compared(rows, session.model, host.machine(), versions, commit, started)
    return compare_report.render(found, form)


class _Opener:
    """Opens the model for one method, strictly: what cannot draft must not be measured as a plain run."""

    def __init__(self, app: App, files: ModelFiles, config: EngineConfig, flags: SpecBenchFlags) -> None:
        self._app, self._files, self._config = app, files, config
        self._spec: SpecConfig = app.settings.override(flags.values()).engine_config().spec

    def __call__(self, method: str) -> Engine:
        from strata_engine.registry.drafters import with_drafter
        from strata_engine.runtime.engine import Engine

        draft = None if method in _WITHOUT_FILES else self._spec.draft
        spec = replace(self._spec, method=method, draft=draft, strict=True, verify=False)
        # what one run kept would not be run by the next: its drafter would know less of the prompt
        config = replace(self._config, spec=spec, prefix_cache=False)
        files, config = with_drafter(self._files, config, self._app.catalog, self._app.store)
        return Engine.open(files, config, local.open_backend(config.device, place_of(self._app)))


def _described(engine: Engine) -> dict[str, Any]:
    from strata_engine.bench.session import describe

    parts = engine.parts
    return {**describe(parts), "device": parts.device.name, "threads": parts.config.threads or parts.device.cores}


def _suite(flags: SpecBenchFlags) -> CasesOf:
    from strata_engine.bench.suites import questions, suite_named

    def cases(engine: Engine) -> tuple[str, Sequence[Case]]:
        suite = suite_named(flags.suite or "", engine.parts.loaded.parameters)
        count = flags.questions or _QUESTIONS
        return f"{suite} x{count}", questions(suite, count)

    return cases


def _test(test: SpeedTest) -> CasesOf:
    from strata_engine.bench.suites import continuation

    return lambda engine: (test.label, [continuation(test, engine.parts.rules)])
