"""The shell lines of tests/vectors/cli/cli_cases.jsonl, each in an empty folder with a small model."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.program import ROOT, environment, install_command
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_models import gguf_metadata, gguf_tensors, tiny_model

CASES = [json.loads(line) for line in (ROOT / "tests/vectors/cli/cli_cases.jsonl").read_text("utf-8").splitlines()]
# `quantize` is not part of this version; its cases wait for it.
NOT_YET = {case["id"] for case in CASES if "llmrun quantize" in case["cmd"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    tiny = tiny_model("llama", vocab_size=384)
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    [written] = write_gguf(path, "llama", gguf_metadata(tiny), gguf_tensors(tiny, "llama"), "F16", tokenizer=True)
    return written


def cases() -> list[Any]:
    # A line that loads the model starts torch and takes a few seconds.
    slow = {case["id"]: [pytest.mark.slow] if "$M" in case["cmd"] else [] for case in CASES}
    return [pytest.param(case, marks=slow[case["id"]], id=case["id"]) for case in CASES if case["id"] not in NOT_YET]


@pytest.mark.parametrize("case", cases())
def test_a_shell_line_ends_as_it_must(case, model, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    path = f"{install_command(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}"
    env = environment(tmp_path, PATH=path, PYTHONPATH=None, M=str(model), GGUF=str(model))
    done = subprocess.run(
        ["bash", "-c", case["cmd"]], env=env, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="replace", timeout=120, check=False,
    )  # fmt: skip
    check(case["expect"], done)


def check(expect: dict[str, Any], done: subprocess.CompletedProcess[str]) -> None:
    told = f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    if "rc" in expect:
        allowed = expect["rc"] if isinstance(expect["rc"], list) else [expect["rc"]]
        assert done.returncode in allowed, told
    if "rc_not" in expect:
        assert done.returncode != expect["rc_not"], told
    assert expect.get("stdout_has", "") in done.stdout, told
    assert expect.get("stderr_has", "") in done.stderr, told
    if "stderr_not" in expect:
        assert expect["stderr_not"] not in done.stderr, told
    assert "Traceback" not in done.stdout + done.stderr, told


def test_only_the_cases_of_quantize_wait():
    assert NOT_YET == {"QZ-01", "QZ-04"}
