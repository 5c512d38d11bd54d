"""Ctrl-C at the very start and at the very end: exit code 130 and not a word."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.program import environment

SEND = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
CASES = {
    "while importing": f"import strata_cli.entry; {SEND}",
    "in the command": f"""
import strata_cli.entry, strata_cli.main
def stop(argv=None):
    {SEND}
strata_cli.main.main = stop
sys.exit(strata_cli.entry.main())""",
    "after the command": f"""
import strata_cli.entry
sys.argv = ["llmrun", "config", "path"]
strata_cli.entry.main()
{SEND}""",
}


@pytest.mark.parametrize("code", CASES.values(), ids=CASES)
def test_an_interrupt_is_silent(tmp_path, code):
    wait = "\nimport time; time.sleep(20)"  # the signal came too late or not at all
    done = child(tmp_path, code + wait)
    assert (done.returncode, done.stderr) == (130, "")


def test_an_ignored_interrupt_stays_ignored(tmp_path):
    code = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import strata_cli.entry; {SEND}; print('on')"
    done = child(tmp_path, code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "on\n", "")


def child(home, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import sys\n{code}"]
    return subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=60, check=False)
