"""Really pressing Tab: the program installs its script, a real shell starts, and the finished line is run.

The `llmrun` on PATH answers completion with the real program and shows any other call as <word><word>.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.program import SOURCES, environment, run

pexpect = pytest.importorskip("pexpect")

PROMPT = "READY> "
START_UP = {
    "bash": (".bashrc", f"PS1='{PROMPT}'\nbind 'set enable-bracketed-paste off'\n"),
    "zsh": (".zshrc", f"PROMPT='{PROMPT}'\nunset zle_bracketed_paste\nunsetopt prompt_sp\n"),
    "fish": (".config/fish/config.fish", f"function fish_prompt; echo -n '{PROMPT}'; end\nset -g fish_greeting\n"),
}
NAMES = {
    "schema": 1,
    "models": {"qwen-test": ["iq4", "q8"], "smol-test": []},
    "local": ["hf.co/user/repo", "hf.co/user/repo:UD-Q4_K_XL", "héllo"],
}


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request) -> str:
    if shutil.which(request.param):
        return request.param
    if os.environ.get("LLMRUN_TEST_SHELLS"):
        pytest.fail(f"{request.param} is not installed")
    pytest.skip(f"{request.param} is not installed")


@pytest.fixture
def home(tmp_path) -> Path:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "llmrun"
    real = f'PYTHONPATH="{SOURCES}" exec "{sys.executable}" -m strata_cli "$@"'
    script.write_text(
        f'#!/bin/sh\nif [ "$1" = __complete ]; then {real}; fi\nprintf "<%s>" "$@"; echo "<end>"\n', encoding="utf-8"
    )
    script.chmod(0o755)
    cache = tmp_path / "llmrun/cache"
    cache.mkdir(parents=True)
    (cache / "completion.json").write_text(json.dumps(NAMES), encoding="utf-8")
    work = tmp_path / "work"
    work.mkdir()
    (work / "my model.gguf").touch()
    (work / "größe.gguf").touch()
    return tmp_path


class Terminal:
    """A shell at its prompt."""

    def __init__(self, shell: str, home: Path) -> None:
        name, text = START_UP[shell]
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")
        env = environment(home, TERM="xterm", PATH=f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}", SHELL=shell)
        done = run(["completion", "--install"], env)
        assert done.code == 0, done.err
        self.child = pexpect.spawn(
            shell, ["-i"], env=env, cwd=str(home / "work"), encoding="utf-8", dimensions=(40, 200), timeout=30
        )
        self.child.expect_exact(PROMPT)

    def finish(self, typed: str) -> list[str]:
        """Type, press Tab, press Enter: the words the program was called with."""
        self.child.send(typed + "\t")
        self.child.send("\r")
        self.child.expect(r"((?:<[^<>]*>)+)<end>")
        words = self.child.match[1]
        self.child.expect_exact(PROMPT)
        return words[1:-1].split("><")

    def close(self) -> None:
        self.child.close(force=True)


@pytest.fixture
def terminal(shell, home):
    started = Terminal(shell, home)
    yield started
    started.close()


def test_tab_finishes_names_around_a_colon_values_files_and_settings(terminal):
    typed_and_called = [
        ("llmrun chat smol-", ["chat", "smol-test"]),
        ("llmrun chat qwen-test:i", ["chat", "qwen-test:iq4"]),
        ("llmrun chat hf.co/user/repo:U", ["chat", "hf.co/user/repo:UD-Q4_K_XL"]),
        ('llmrun chat "qwen-test:i', ["chat", "qwen-test:iq4"]),
        ("llmrun chat other:model qwen-test:i", ["chat", "other:model", "qwen-test:i"]),
        ("llmrun serve other:model  smol-", ["serve", "other:model", "smol-test"]),
        ("llmrun --color never chat smol-", ["--color", "never", "chat", "smol-test"]),
        ("llmrun chat hé", ["chat", "héllo"]),
        ("llmrun chat ./my", ["chat", "./my model.gguf"]),
        ("llmrun chat my", ["chat", "my model.gguf"]),
        ("llmrun chat ./grö", ["chat", "./größe.gguf"]),
        ("llmrun comple", ["completion"]),
        ("llmrun run --kv-type b", ["run", "--kv-type", "bf16"]),
        ("llmrun run --kv-type=b", ["run", "--kv-type=bf16"]),
        ("llmrun run --ignore-e", ["run", "--ignore-eos"]),
        ("llmrun config get temp", ["config", "get", "temperature"]),
        ("llmrun chat --config ./my", ["chat", "--config", "./my model.gguf"]),
    ]
    found = [(typed, terminal.finish(typed)) for typed, _ in typed_and_called]
    assert found == typed_and_called


def test_tab_stays_silent_and_the_line_unchanged_when_the_program_is_broken(shell, home):
    terminal = Terminal(shell, home)
    (home / "llmrun/cache/completion.json").write_text("{", encoding="utf-8")
    try:
        assert terminal.finish("llmrun rm zzz") == ["rm", "zzz"]
    finally:
        terminal.close()


def test_installing_twice_changes_nothing_and_uninstalling_leaves_the_user_file_as_it_was(shell, home):
    name, text = START_UP[shell]
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).write_text(text, encoding="utf-8")
    env = environment(home, SHELL=shell)
    files = []
    for _ in range(2):
        assert run(["completion", shell, "--install"], env).code == 0
        files.append((home / name).read_text(encoding="utf-8"))
    assert files[0] == files[1]
    assert run(["completion", shell, "--uninstall"], env).code == 0
    assert (home / name).read_text(encoding="utf-8") == text
    assert not list(home.rglob("llmrun.fish")) + list(home.rglob("llmrun.bash")) + list(home.rglob("llmrun.zsh"))
