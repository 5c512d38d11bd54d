"""config and completion: settings of the program and of the shell."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated, Any

import typer

from strata_cli import completion_install, config_file
from strata_cli.app import App
from strata_cli.completion import SHELLS
from strata_cli.completion_scripts import SCRIPTS
from strata_cli.keys import KEYS, Key
from strata_cli.settings import Settings, config_path, parse_config
from strata_engine.errors import LlmrunError, UsageError

config = typer.Typer(add_completion=False, rich_markup_mode=None, help="Read and change settings.")
_Name = Annotated[str, typer.Argument(metavar="SETTING", help="Name of a setting; `llmrun config list` shows all")]


@config.command("list")
def list_settings(
    context: typer.Context,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from")] = False,
) -> None:
    """List all settings with their values."""
    app = App.of(context)
    settings = app.settings
    if app.output.json_mode:
        rows = [_record(settings, key) for key in KEYS.values()]
        app.output.data("llmrun.config.v1", {"file": str(settings.config_file), "settings": rows})
        return
    headers = ["SETTING", "VALUE", "ORIGIN"] if origin else ["SETTING", "VALUE"]
    rows = [[k.name, _shown(settings, k), settings.origin(k.name)][: len(headers)] for k in KEYS.values()]
    app.output.table(headers, rows)


@config.command("get")
def get_setting(
    context: typer.Context,
    name: _Name,
    origin: Annotated[bool, typer.Option("--origin", help="Say where the value comes from")] = False,
) -> None:
    """Print one setting."""
    app = App.of(context)
    key = config_file.known_key(name)
    if app.output.json_mode:
        app.output.data("llmrun.config.v1", _record(app.settings, key))
        return
    value = _text(app.settings.get(key.name))
    app.output.line(f"{value}\t{app.settings.origin(key.name)}" if origin else value)


@config.command("set", context_settings={"ignore_unknown_options": True})  # a value may be -1
def set_setting(
    context: typer.Context, name: _Name, value: Annotated[str, typer.Argument(metavar="VALUE", help="New value")]
) -> None:
    """Write one setting to the config file."""
    app = App.of(context)
    key = config_file.known_key(name)
    try:
        parsed = key.parse(value)
    except ValueError as error:
        raise UsageError(f"{key.name}: {error}") from error
    file = config_path(app.flags, app.env, app.paths)
    text = file.read_text(encoding="utf-8-sig") if file.is_file() else ""
    config_file.write(file, config_file.with_value(text, key, parsed))
    _done(app, f"{key.name} = {'(hidden)' if key.secret else _text(parsed)} in {file}", str(file), key)
    if key.env and app.env.get(key.env):
        app.output.warn(f"{key.env} is set in the environment and wins over the config file")


@config.command("unset")
def unset_setting(context: typer.Context, name: _Name) -> None:
    """Remove one setting from the config file."""
    app = App.of(context)
    key = config_file.known_key(name)
    file = config_path(app.flags, app.env, app.paths)
    text = config_file.without_value(file.read_text(encoding="utf-8-sig"), key) if file.is_file() else None
    if text is None:
        _done(app, f"{key.name} was not set in {file}", str(file), key)
        return
    config_file.write(file, text)
    _done(app, f"{key.name} removed from {file}", str(file), key)


@config.command("path")
def show_path(context: typer.Context) -> None:
    """Print the path of the config file."""
    app = App.of(context)
    file = config_path(app.flags, app.env, app.paths)
    if app.output.json_mode:
        app.output.data("llmrun.config.v1", {"file": str(file), "exists": file.is_file()})
        return
    app.output.line(str(file))


@config.command("edit")
def edit_file(context: typer.Context) -> None:
    """Open the config file in an editor and check the result."""
    import shlex

    app = App.of(context)
    editor = _editor(app)
    if not editor:
        raise UsageError("no editor is known", "set EDITOR, for example EDITOR=nano, or use `llmrun config set`")
    file = config_path(app.flags, app.env, app.paths)
    if not file.exists():
        config_file.write(file, "# Settings of llmrun; `llmrun config list` shows the names.\n")
    try:
        code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode
    except OSError as error:
        raise UsageError(f"cannot start the editor {editor}: {error.strerror}") from error
    if code != 0:
        raise LlmrunError(f"the editor {editor} ended with code {code}")
    parse_config(file.read_text(encoding="utf-8-sig"), str(file))
    _done(app, f"{file} is valid", str(file), None)


def _editor(app: App) -> str:
    try:
        chosen = str(app.settings.get("editor"))
    except LlmrunError:  # the file to be repaired is the broken one
        chosen = app.env.get("LLMRUN_EDITOR")
    return chosen or app.env.get("VISUAL") or app.env.get("EDITOR")


def _done(app: App, text: str, file: str, key: Key | None) -> None:
    if app.output.json_mode:
        app.output.data("llmrun.config.v1", {"file": file, "setting": key.name if key else None, "message": text})
        return
    app.output.note(text)


def _record(settings: Settings, key: Key) -> dict[str, Any]:
    value = settings.get(key.name)
    shown = _shown(settings, key) if key.secret else value
    return {"name": key.name, "value": shown, "origin": settings.origin(key.name), "meaning": key.meaning}


def _shown(settings: Settings, key: Key) -> str:
    value = settings.get(key.name)
    return ("(hidden)" if value else "") if key.secret else _text(value)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def completion(
    context: typer.Context,
    shell: Annotated[str, typer.Argument(metavar="[bash|zsh|fish|powershell]", help="Shell", show_default=False)] = "",
    install: Annotated[bool, typer.Option("--install", help="Install it for your user")] = False,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Remove what --install did")] = False,
) -> None:
    """Print the completion script of a shell, or install it.

    For one session: `source <(llmrun completion bash)`. With --install and no shell named, the login shell is taken.
    """
    app = App.of(context)
    if install and uninstall:
        raise UsageError("--install and --uninstall at once")
    shell = "powershell" if shell == "pwsh" else shell
    if not shell and (install or uninstall):
        shell = completion_install.login_shell(app.env)
    if shell not in SHELLS:
        raise UsageError(f"no such shell: {shell}" if shell else "which shell?", f"one of {', '.join(SHELLS)}")
    if not install and not uninstall:
        if app.output.json_mode:
            app.output.data("llmrun.completion.v1", {"shell": shell, "script": SCRIPTS[shell]})
        else:
            app.output.write(SCRIPTS[shell])
        return
    places = completion_install.places(shell, app.env, app.paths.data, sys.platform)
    changed = completion_install.install(shell, places) if install else completion_install.uninstall(places)
    if app.output.json_mode:
        app.output.data("llmrun.completion.v1", {"shell": shell, "changed": [str(p) for p in changed]})
        return
    for path in changed:
        app.output.note(f"{'written' if install else 'cleaned'}: {path}")
    app.output.note("open a new shell to use it" if install else "done" if changed else "nothing was installed")
