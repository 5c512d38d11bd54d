"""argv to exit code: help, errors in text and JSON, closed pipes, signals, full disks, closed descriptors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.gguf_bytes import LLAMA, gguf, tensor
from tests.support.program import environment, run


@pytest.fixture
def env(tmp_path):
    return environment(tmp_path)


def shell(line: str, env: dict[str, str], cwd) -> subprocess.CompletedProcess[str]:
    program = f'"{sys.executable}" -m strata_cli'
    text = f'set -o pipefail; llmrun() {{ {program} "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-c", text], env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def test_help_without_a_command_lists_every_command(env):
    done = run(["--help"], env)
    assert done.code == 0
    for name in ("chat", "run", "pull", "serve", "bench", "doctor", "completion"):
        assert f"\n  {name} " in done.out


def test_no_arguments_show_the_help_and_end_with_2(env):
    done = run([], env)
    assert (done.code, done.out.startswith("Usage: llmrun")) == (2, True)


def test_the_version_flag_works_anywhere(env):
    assert run(["-V"], env).out.startswith("llmrun ")
    assert run(["config", "list", "--version"], env).out.startswith("llmrun ")


def test_an_unknown_command_names_near_ones(env):
    done = run(["doktor"], env)
    assert done.code == 2
    assert done.err == "error: no such command: doktor\n  try: llmrun doctor\n"


def test_an_unknown_flag_is_a_usage_error_of_that_command(env):
    done = run(["config", "list", "--origins"], env)
    assert done.code == 2
    assert "--origins" in done.err and "llmrun config" in done.err


def test_a_missing_argument_is_a_usage_error(env):
    done = run(["config", "get"], env)
    assert done.code == 2 and "SETTING" in done.err


@pytest.mark.parametrize(
    ("args", "code", "exit_code"),
    [
        (["nonsense"], "usage", 2),
        (["--color", "pink", "version"], "usage", 2),
        (["config", "get", "nonsense"], "usage", 2),
        (["config", "list", "--config", "/nonexistent/file.toml"], "not_found", 3),
        (["version", "--log-file", "/nonexistent/dir/log"], "usage", 2),
    ],
)
def test_an_error_with_json_is_one_document_on_stdout(env, args, code, exit_code):
    done = run(["--json", *args], env)
    document = json.loads(done.out)
    assert document["schema"] == "llmrun.error.v1"
    assert (document["error"]["code"], document["error"]["exit_code"], done.code) == (code, exit_code, exit_code)
    assert document["error"]["message"] and "hint" in document["error"]
    assert "Traceback" not in done.err


def test_flags_after_two_dashes_belong_to_the_command(env):
    done = run(["config", "set", "editor", "--", "--json"], env)
    assert done.code == 0
    assert run(["config", "get", "editor"], env).out == "--json\n"


def test_a_global_flag_without_its_value_is_a_usage_error(env):
    done = run(["version", "--color"], env)
    assert (done.code, done.err) == (2, "error: --color needs a value\n")


def test_a_reader_that_goes_away_ends_it_quietly(env, tmp_path):
    done = shell("llmrun config list --json | head -c 1; echo ${PIPESTATUS[0]}", env, tmp_path)
    assert done.stdout[0] == "{"
    assert int(done.stdout[1:]) in (0, 141)
    assert done.stderr == ""


def test_a_pipe_that_is_closed_from_the_start_ends_with_141_or_0(env, tmp_path):
    done = shell("llmrun --help | true; echo ${PIPESTATUS[0]}", env, tmp_path)
    assert int(done.stdout) in (0, 141)
    assert done.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("command", ["--help", "config list", "config list --json"])
def test_a_full_disk_behind_stdout_ends_with_7_and_one_error(env, tmp_path, command):
    done = shell(f"llmrun {command} > /dev/full", env, tmp_path)
    assert done.returncode == 7
    assert done.stderr.startswith("error: no space left on device")
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_descriptors_do_no_harm(env, tmp_path, closed):
    assert shell(f"llmrun version {closed}", env, tmp_path).returncode == 0


@pytest.mark.parametrize(
    "variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": None}, {"LC_ALL": "C"}, {"LC_ALL": None, "LANG": None}]
)
def test_no_escape_byte_reaches_a_pipe(tmp_path, variables):
    env = environment(tmp_path, **variables)
    for args in (["--help"], ["version"], ["hw"], ["config", "list"], ["nonsense"]):
        done = run(args, env)
        assert "\x1b" not in done.out + done.err


def test_without_a_home_it_still_works(tmp_path):
    env = environment(tmp_path, HOME=None, LLMRUN_HOME=None)
    for args in (["version"], ["config", "path"], ["config", "list"]):
        done = run(args, env)
        assert done.code == 0, done.err


def test_an_unwritable_home_is_an_error_without_a_traceback(tmp_path):
    file = tmp_path / "file"
    file.touch()
    done = run(["config", "set", "ctx", "4096"], environment(tmp_path, LLMRUN_HOME=str(file)))
    assert done.code == 1
    assert done.err.startswith(f"error: Not a directory: {file}")


def test_a_removed_directory_is_said_before_the_engine_starts(env, tmp_path):
    (tmp_path / "m.gguf").write_bytes(gguf([LLAMA], [tensor("t", [32])], b"\0" * 128))
    done = shell(f"mkdir gone; cd gone; rmdir ../gone; llmrun run {tmp_path}/m.gguf hi", env, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the current directory no longer exists")


def test_debug_shows_the_traceback(env):
    assert "Traceback" in run(["config", "get", "nonsense", "--debug"], env).err


WAITING = """
import sys
from strata_cli import command_table
import types
module = types.ModuleType("strata_cli.commands.waiting")
exec('''
import sys, time
import typer
def wait(context: typer.Context) -> None:
    sys.stdout.write("ready\\\\n")
    sys.stdout.flush()
    time.sleep(60)
''', module.__dict__)
sys.modules["strata_cli.commands.waiting"] = module
command_table.COMMANDS = (command_table.Command("wait", "waiting:wait", "", ""),)
from strata_cli.main import main
sys.exit(main(["wait"]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_quietly_with_its_code(env, number, code):
    child = subprocess.Popen(
        [sys.executable, "-c", WAITING], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stderr is not None
    assert child.stdout.readline() == "ready\n"
    started = time.monotonic()
    child.send_signal(number)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (code, "")
    assert time.monotonic() - started < 5


def test_a_log_file_gets_json_lines_when_asked(env, tmp_path):
    log = tmp_path / "log"
    assert run(["version", "--log-file", str(log), "--log-format", "json"], env).code == 0
    assert all(json.loads(line)["level"] for line in log.read_text(encoding="utf-8").splitlines())
