"""argv -> command. The only place that turns errors into text and exit codes, and that configures logging.

Flow: completion is answered first (no typer), then global flags are split off, `--help` and `--version` are answered
from the table, then the command's module is imported and its function called through typer.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from strata_engine.errors import LlmrunError, NotFound, UsageError

_INTERRUPTED, _TERMINATED, _PIPE = 130, 143, 141


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code (see docs/cli.md). Never shows a traceback unless --debug."""
    args = sys.argv[1:] if argv is None else argv
    if args[:1] == ["__complete"]:
        from strata_cli.completion import answer

        return answer(args[1:])
    app: Any = None
    try:
        from strata_cli.app import App
        from strata_cli.globals import given_switches, split

        app = App.create(given_switches(args))  # so that even a wrong global flag is reported in the wanted form
        flags, rest = split(args)
        app = App.create(flags)
        signal.signal(signal.SIGTERM, _on_terminate)
        code = _dispatch(app, rest)
        app.output.stdout.flush()
        return code
    except BrokenPipeError:
        return _closed_pipe()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except SystemExit as stop:
        return _exit_code(stop)
    except LlmrunError as error:
        return _report(app, error)
    except Exception as error:  # noqa: BLE001 - last resort: one of the three places (design, section 3)
        return _unexpected(app, error)


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    return 1


def _dispatch(app: Any, rest: list[str]) -> int:
    from strata_cli import command_table, helptext

    flags = app.flags
    if flags.version:
        rest = ["version"]
    if not rest or (flags.help and rest[0] == "--"):
        app.output.line(helptext.overview())
        return 0 if flags.help else 2
    name, args = rest[0], rest[1:]
    if name == "help":
        name, args = (args[0], []) if args else ("", [])
        flags = app.flags = helptext.with_help(flags)
        if not name:
            app.output.line(helptext.overview())
            return 0
    command = command_table.find(name)
    if command is None:
        raise UsageError(f"no such command: {name}", helptext.nearest_command(name))
    if flags.help:
        end = args.index("--") if "--" in args else len(args)
        args = [*args[:end], "--help"]
    return _call(app, command, args)


def _call(app: Any, command: Any, args: list[str]) -> int:
    from strata_cli.clickerrors import as_usage_error
    from strata_cli.loader import load
    from strata_cli.logs import configure

    configure(app)
    parser = load(command)
    # Not parser.main(): that one turns a closed pipe into exit code 1 and prints on Ctrl-C.
    with as_usage_error(), parser.make_context(f"llmrun {command.name}", args, obj=app) as context:
        result = parser.invoke(context)
    return result if isinstance(result, int) else 0


def _report(app: Any, error: LlmrunError) -> int:
    if app is None:
        sys.stderr.write(f"error: {error.message}\n" + (f"  try: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    if app.debug:
        import traceback

        traceback.print_exc(file=app.output.stderr)
    try:
        app.output.stdout.flush()
        if app.output.json_mode:
            body = {"code": error.code, "exit_code": error.exit_code, "message": error.message, "hint": error.hint}
            app.output.data("llmrun.error.v1", {"error": {**body, "details": error.details}})
    except BrokenPipeError:
        return _closed_pipe()
    except OSError:
        _mute()  # a full disk behind stdout is often the very error to be told on stderr
    try:
        app.output.error(error.message, error.hint)
    except OSError:
        _mute()
    return error.exit_code


def _unexpected(app: Any, error: Exception) -> int:
    if isinstance(error, FileNotFoundError):
        return _report(app, NotFound(f"no such file: {error.filename or error}"))
    known = _from_system(error)
    if known is not None:
        return _report(app, known)
    if app is not None and app.debug:
        raise error
    text = f"unexpected {type(error).__name__}: {error}"
    return _report(app, LlmrunError(text, "the same command with --debug shows where; please report it"))


def _from_system(error: Exception) -> LlmrunError | None:
    import errno

    from strata_engine.errors import OutOfMemory

    if isinstance(error, MemoryError):
        return OutOfMemory("not enough memory", "a smaller model, a smaller --ctx, or `llmrun fit MODEL`")
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutOfMemory(f"no space left on device: {error.filename or ''}".rstrip(": "), "free some disk space")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return LlmrunError(f"{error.strerror}: {error.filename or ''}".rstrip(": "), "check the permissions")
    if error.filename is not None and error.strerror:  # a file where a directory should be, a name too long, ...
        return LlmrunError(f"{error.strerror}: {error.filename}", "check this path, and LLMRUN_HOME if it is set")
    return None


def _closed_pipe() -> int:
    _mute()
    return _PIPE


def _mute() -> None:
    # Nobody reads any more (| head), or the disk is full: the interpreter's own last flush must stay quiet.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    if sys.stderr is not None and not sys.stderr.isatty():
        try:
            sys.stderr.flush()
        except OSError:
            os.dup2(nothing, 2)


def _on_terminate(_signum: int, _frame: Any) -> None:
    raise SystemExit(_TERMINATED)
