"""All checks of `llmrun doctor`: the engine's own, and those of settings, shell and server."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Callable, Sequence

from strata_backends import sysfs
from strata_backends.machine import memory_bytes
from strata_backends.probe import gpus, overrides
from strata_cli import completion_install
from strata_cli.app import App
from strata_cli.devices import place_of
from strata_cli.hubsettings import hub_settings
from strata_cli.server_record import read_record
from strata_cli.settings import load_settings
from strata_engine.doctor import graphics, kernels, machine, network
from strata_engine.doctor.check import FAIL, OK, SKIP, WARN, Check
from strata_engine.errors import LlmrunError
from strata_engine.registry.hubs.pip_settings import pip_settings


def run_all(app: App) -> list[Check]:
    """Every check, in the order they are shown. Takes a few seconds at most; changes nothing."""
    place = place_of(app)
    checks = [
        machine.check_python(),
        machine.check_processor(sysfs.cpu()),
        machine.check_memory(*memory_bytes()),
        *graphics.check_graphics(gpus(place), overrides(place), place.make_ops is not None),
        *kernels.check_all(),
        *machine.check_store(app.paths.models),
        check_config(app),
        check_catalog(app),
        check_completion(app),
        check_server(app),
        network.check_proxy(urllib.request.getproxies()),
    ]
    return [*checks, *_network(app)]


def lines(checks: Sequence[Check]) -> list[str]:
    """A line for each check and one for each remedy. No colour: the words carry the meaning, and reports paste them."""
    width = max(len(check.name) for check in checks)
    found = []
    for check in checks:
        found.append(f"{check.status.ljust(4)}  {check.name.ljust(width)}  {check.text}")
        if check.remedy and check.status in (WARN, FAIL):
            found.append(f"      {' ' * width}  try: {check.remedy}")
    return found


def _network(app: App) -> list[Check]:
    settings = hub_settings(app.env)
    urls = {"hub": settings.hf_endpoint, "modelscope": settings.modelscope_endpoint}
    if _value(lambda: app.offline, False):
        return network.skipped({**urls, "package index": ""})
    index, fault = _index_url()
    answers = network.ask_all({**urls, **index}, settings.ca_file)
    return [*network.check_hosts(answers), *fault, network.check_clock(answers)]


def _index_url() -> tuple[dict[str, str], list[Check]]:
    """pip's first index on the web, or why there is none."""
    try:
        found = pip_settings()
    except LlmrunError as error:
        return {}, [Check("package index", WARN, error.message, error.hint)]
    on_web = [url for url in found.indexes if url.startswith("http")]
    if on_web:
        return {"package index": on_web[0]}, []
    return {}, [Check("package index", OK, "pip is set to use local places only")]


def _value(read: Callable[[], bool], otherwise: bool) -> bool:
    # A broken config file is one check's finding, not the end of all checks.
    try:
        return read()
    except LlmrunError:
        return otherwise


def check_config(app: App) -> Check:
    """The config file and the environment are understood."""
    try:
        settings = load_settings(app.flags, app.env, app.paths)
    except LlmrunError as error:
        return Check("config", FAIL, error.message, error.hint or "llmrun config edit")
    unknown = app.env.unknown()
    if unknown:
        return Check("config", WARN, f"unknown variables: {', '.join(unknown)}", "docs/env.md lists the known ones")
    return Check(
        "config", OK, str(settings.config_file) + ("" if settings.config_file.is_file() else " (not made yet)")
    )


def check_catalog(app: App) -> Check:
    """The models.yaml files are readable."""
    try:
        catalog = app.catalog
    except LlmrunError as error:
        return Check("catalog", FAIL, error.message, error.hint)
    if catalog.warnings:
        return Check("catalog", WARN, catalog.warnings[0], "correct the file named")
    return Check("catalog", OK, f"{len(catalog.entries)} models known")


def check_completion(app: App) -> Check:
    """Completion of the login shell."""
    try:
        shell = completion_install.login_shell(app.env)
        where = completion_install.places(shell, app.env, app.paths.data, sys.platform)
    except LlmrunError as error:
        return Check("completion", SKIP, error.message)
    if completion_install.installed(where):
        return Check("completion", OK, f"installed for {shell}")
    return Check("completion", OK, f"not installed for {shell} (llmrun completion {shell} --install)")


def check_server(app: App) -> Check:
    """Whether a server of ours runs."""
    record = read_record(app.paths.server_file)
    if record is None:
        return Check("server", OK, "none running")
    return Check("server", OK, f"running: process {record.pid}, {record.unix or record.address.url}")
