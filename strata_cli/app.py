"""App: what a command gets. Settings, paths and output at once; catalog, store and service on first use."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

from strata_cli.globals import GlobalFlags
from strata_cli.output import Output
from strata_engine.env import Env
from strata_engine.paths import Paths

if TYPE_CHECKING:
    import typer

    from strata_cli.settings import Settings
    from strata_engine.registry.catalog import Catalog
    from strata_engine.registry.store import Store


@dataclass
class App:
    """One run of the program. Built by main; tests build it directly."""

    flags: GlobalFlags
    env: Env
    paths: Paths
    output: Output

    @classmethod
    def create(cls, flags: GlobalFlags) -> App:
        """From the real environment and terminal."""
        env = Env()
        return cls(flags, env, env.paths(), _make_output(flags, env))

    @staticmethod
    def of(context: typer.Context) -> App:
        """The App behind a command's typer context."""
        return context.find_root().obj

    @property
    def offline(self) -> bool:
        """The network must not be used."""
        return bool(self.settings.get("offline"))

    @property
    def debug(self) -> bool:
        """Tracebacks and the debug log are wanted."""
        return self.flags.debug or self.env.flag("LLMRUN_DEBUG")

    @cached_property
    def settings(self) -> Settings:
        """Merged settings with the origin of each value."""
        from strata_cli.settings import load_settings

        return load_settings(self.flags, self.env, self.paths)

    @cached_property
    def catalog(self) -> Catalog:
        """Known models, merged from all models.yaml files."""
        from strata_engine.registry.catalog import load_catalog

        return load_catalog(self.settings.catalog_files)

    @cached_property
    def store(self) -> Store:
        """Downloaded files."""
        from strata_engine.registry.store import Store

        return Store(self.paths)


def _make_output(flags: GlobalFlags, env: Env) -> Output:
    mode = "jsonl" if flags.jsonl else "json" if flags.json else "text"
    # A stream is None when its descriptor was closed (`>&-`).
    stdout, stderr = (stream or open(os.devnull, "w", encoding="utf-8") for stream in (sys.stdout, sys.stderr))
    for stream in (stdout, stderr):
        _as_utf8(stream)
    return Output(mode, flags.quiet, flags.verbose, _colour(flags, env, stdout, stderr), stdout, stderr)


def _as_utf8(stream: Any) -> None:
    # A C locale must not turn model text into UnicodeEncodeError.
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(encoding="utf-8", errors="replace")


def _colour(flags: GlobalFlags, env: Env, stdout: TextIO, stderr: TextIO) -> bool:
    if flags.color in ("always", "never"):
        return flags.color == "always"
    if env.get("NO_COLOR") or env.get("TERM") == "dumb":
        return False
    if env.get("FORCE_COLOR") or env.flag("CLICOLOR_FORCE"):
        return True
    return stdout.isatty() and stderr.isatty() and os.name != "nt"
