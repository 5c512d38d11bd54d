"""Puts a completion script where a shell finds it, and takes it away again.

fish loads a file by its name. The others get the script in our data directory and a marked block in their start-up
file, which is the only part of that file that is ever changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from strata_cli.completion import SHELLS
from strata_cli.completion_scripts import FILES, SCRIPTS
from strata_cli.config_file import write
from strata_engine.env import Env
from strata_engine.errors import UsageError
from strata_engine.paths import expand

_BEGIN, _END = "# >>> llmrun completion >>>", "# <<< llmrun completion <<<"
_BLOCK = re.compile(rf"\n?{re.escape(_BEGIN)}\n.*?{re.escape(_END)}\n", re.DOTALL)
_LOAD = {
    "bash": "[ -r {script} ] && . {script}",
    "zsh": "(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}\n[ -r {script} ] && . {script}",
    "powershell": "if (Test-Path {script}) {{ . {script} }}",
}


@dataclass(frozen=True)
class Places:
    """`script`: file of the script. `start_up`: file that loads it, None when the shell finds the script by itself."""

    script: Path
    start_up: Path | None


def login_shell(env: Env) -> str:
    """Name of the login shell. Raises UsageError when it is none of ours."""
    name = Path(env.get("SHELL")).name
    if name in SHELLS:
        return name
    raise UsageError(f"no completion for the login shell {name or '(unknown)'}", f"name one: {', '.join(SHELLS)}")


def places(shell: str, env: Env, data: Path, platform: str) -> Places:
    """Where the script and the line that loads it belong. Raises UsageError without a home directory."""
    home = expand(env.get("HOME") or "~")
    if not home.is_absolute():
        raise UsageError("no home directory to install into", "llmrun completion SHELL prints the script")
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    script = data / "completion" / FILES[shell]
    if shell == "fish":
        return Places(config / "fish" / "completions" / "llmrun.fish", None)
    if shell == "zsh":
        return Places(script, Path(env.get("ZDOTDIR") or home) / ".zshrc")
    if shell == "bash":
        return Places(script, home / ".bashrc")
    profile = home / "Documents" / "PowerShell" if platform == "win32" else config / "powershell"
    return Places(script, profile / "Microsoft.PowerShell_profile.ps1")


def install(shell: str, where: Places) -> list[Path]:
    """Write the script and the block; the files that changed."""
    changed = [where.script] if _replace(where.script, SCRIPTS[shell]) else []
    if where.start_up is not None:
        quoted = "'" + str(where.script).replace("'", "''" if shell == "powershell" else "'\\''") + "'"
        block = f"\n{_BEGIN}\n{_LOAD[shell].format(script=quoted)}\n{_END}\n"
        rest = _BLOCK.sub("", _read(where.start_up))
        if rest and not rest.endswith("\n"):
            rest += "\n"
        changed += [where.start_up] if _replace(where.start_up, rest + block) else []
    return changed


def uninstall(where: Places) -> list[Path]:
    """Remove the script and the block; the files that changed."""
    changed: list[Path] = []
    if where.script.exists():
        where.script.unlink()
        changed.append(where.script)
    if where.start_up is not None and _replace(where.start_up, _BLOCK.sub("", _read(where.start_up))):
        changed.append(where.start_up)
    return changed


def installed(where: Places) -> bool:
    """Both parts are there."""
    return where.script.is_file() and (where.start_up is None or _BEGIN in _read(where.start_up))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return ""


def _replace(file: Path, text: str) -> bool:
    if _read(file) == text:
        return False
    write(file, text)
    return True
