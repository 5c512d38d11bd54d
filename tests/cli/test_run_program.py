"""run, chat and bench as typed: the whole program, the real engine, a tiny random model with a tokenizer.

A process of its own where the shell, a pipe or a signal matters; else main() in this one.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from strata_cli.main import main
from tests.support.tiny_llama import CONTEXT, tiny_llama

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    keep = {k: os.environ[k] for k in ("PATH", "HOME", "LANG") if k in os.environ}
    python_path = os.pathsep.join(str(ROOT / p) for p in (".", "backends", "kernels"))
    return {**keep, "PYTHONPATH": python_path, "LLMRUN_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def llmrun(env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    def run(*args: str, stdin: str = "") -> Done:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = main(list(args))
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return run


def shell(env: dict[str, str], folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    line = line.replace("llmrun ", f"{sys.executable} -m strata_cli ")
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, errors="replace", env=env, cwd=folder, timeout=120,
        check=False,
    )  # fmt: skip


def test_an_answer_goes_to_stdout_and_nothing_but_notes_to_stderr(llmrun, model: Path):
    done = llmrun("run", str(model), "hi", "-n", "8", "--seed", "1", "--stats")
    assert done.returncode == 0
    assert done.stdout.endswith("\n")
    lines = done.stderr.splitlines()
    assert lines[0].startswith("prompt ")
    assert " | generated 8 tokens, " in lines[0]
    assert " | load " in lines[0]
    assert "cut at 8 tokens" in lines[1]
    assert len(lines) == 2


def test_cl_01_no_escape_byte_reaches_a_file(env, tmp_path: Path, model: Path):
    line = f"NO_COLOR=1 llmrun run {model} hi -n 20 > out 2> err; ! grep -q $'\\x1b' out err"
    assert shell(env, tmp_path, line).returncode == 0
    assert (tmp_path / "out").read_bytes()


def test_cl_16_a_closed_pipe_is_quiet(env, tmp_path: Path, model: Path):
    done = shell(env, tmp_path, f"set -o pipefail; llmrun run {model} 'Count to 50' --ignore-eos -n 200 | head -c 1")
    assert done.returncode in (0, 141)
    assert done.stdout != ""
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr


def test_cl_18_a_prompt_may_begin_with_a_dash(llmrun, model: Path):
    assert llmrun("run", str(model), "-n", "2", "--", "-5 + 3 =").returncode == 0


@pytest.mark.parametrize("prompt", ["@file", "/help", '"""', "--n"])
def test_cl_18_odd_beginnings_are_plain_text(llmrun, model: Path, prompt: str):
    assert llmrun("run", str(model), "-n", "2", "--", prompt).returncode == 0


def test_cl_18_only_blanks_are_a_usage_error(llmrun, model: Path):
    done = llmrun("run", str(model), "   ")
    assert (done.returncode, done.stdout) == (2, "")
    assert "empty" in done.stderr


@pytest.mark.parametrize("name", ["資料\u3000x", "Café", "Загрузки", "with blank"])
def test_cl_09_any_name_of_a_model_file_and_home_will_do(llmrun, model: Path, monkeypatch, tmp_path: Path, name: str):
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.setenv("LLMRUN_HOME", str(folder / "home"))
    other = shutil.copy(model, folder / f"{name}.gguf")
    for reference in (str(other), f"./{name}", f"./{name}/{name}.gguf"):
        done = llmrun("run", reference, "hi", "-n", "2", "--json")
        assert (done.returncode, json.loads(done.stdout)["model"]) == (0, name)


def test_cl_21_a_file_may_vanish_while_its_model_answers(env, tmp_path: Path, model: Path):
    line = "mv victim.gguf gone.gguf; rm gone.gguf"
    shutil.copy(model, tmp_path / "victim.gguf")
    command = [sys.executable, "-m", "strata_cli", "run", "./victim.gguf", "hi", "--ignore-eos", "-n", "300"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=tmp_path) as process:
        assert process.stdout
        assert os.read(process.stdout.fileno(), 1)
        assert shell(env, tmp_path, line).returncode == 0
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"error" not in errors


def test_a_prompt_beyond_the_context_is_refused_with_the_numbers(llmrun, model: Path):
    done = llmrun("run", str(model), "long " * 2000)
    assert (done.returncode, done.stdout) == (11, "")
    assert str(CONTEXT) in done.stderr
    assert "Traceback" not in done.stderr


def test_piped_text_goes_before_the_prompt(llmrun, model: Path):
    plain = llmrun("run", str(model), "one\n\ntwo", "-n", "6", "--temp", "0", "--json")
    piped = llmrun("run", str(model), "two", "-n", "6", "--temp", "0", "--json", stdin="one\n")
    assert json.loads(plain.stdout)["choices"] == json.loads(piped.stdout)["choices"]
    assert json.loads(plain.stdout)["usage"] == json.loads(piped.stdout)["usage"]


def test_chat_off_a_terminal_behaves_as_run(llmrun, model: Path):
    run = llmrun("run", str(model), "-", "-n", "6", "--temp", "0", stdin="hi")
    chat = llmrun("chat", str(model), "-n", "6", "--temp", "0", stdin="hi")
    assert (chat.returncode, chat.stdout) == (0, run.stdout)


def test_json_with_logprobs_is_one_document(llmrun, model: Path):
    done = llmrun("run", str(model), "hi", "-n", "4", "--ignore-eos", "--logprobs", "2", "--json")
    content = json.loads(done.stdout)["choices"][0]["logprobs"]["content"]
    assert len(content) >= 3
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)


def test_json_lines_end_with_finish(llmrun, model: Path):
    lines = [json.loads(line) for line in llmrun("run", str(model), "hi", "-n", "4", "--jsonl").stdout.splitlines()]
    assert (lines[0]["type"], lines[-1]["type"]) == ("started", "finish")


def test_a_seed_repeats_the_answer_and_strict_gives_11(llmrun, model: Path):
    first, second = (llmrun("run", str(model), "hi", "-n", "12", "--seed", "5", "--strict") for _ in range(2))
    assert first.stdout == second.stdout
    assert first.returncode == 11


def test_raw_sends_no_template(llmrun, model: Path):
    raw = json.loads(llmrun("run", str(model), "hi", "--raw", "-n", "2", "--json").stdout)
    chat = json.loads(llmrun("run", str(model), "hi", "-n", "2", "--json").stdout)
    assert raw["usage"]["prompt_tokens"] == 2
    assert chat["usage"]["prompt_tokens"] > 2


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("run", "MODEL", "hi", "--temp", "-1"), 2),
        (("run", "MODEL", "hi", "--raw", "-s", "x"), 2),
        (("run", "MODEL", "hi", "--logprobs", "2"), 2),
        (("run", "MODEL", "hi", "--timeout", "soon"), 2),
        (("run", "MODEL", "hi", "--format", "json"), 2),
        (("run", "MODEL", "hi", "--image", "cat.png"), 3),
        (("run", "MODEL", "hi", "-f", "none.txt"), 3),
        (("run", "MODEL", "hi", "-o", "none/out.txt"), 3),
        (("run", "./none.gguf", "hi"), 3),
        (("run", "smolm2", "hi"), 3),
        (("run", "smolm2"), 3),
        (("run", "MODEL", "hi", "--server", "http://127.0.0.1:9"), 9),
        (("chat", "--continue"), 3),
        (("chat", "MODEL", "hi", "--session", "../x"), 2),
        (("bench", "MODEL", "-p", "0", "-n", "0"), 2),
        (("bench", "MODEL", "-o", "xml"), 2),
    ],
)
def test_wrong_use_gives_one_clear_error(llmrun, model: Path, args: tuple[str, ...], code: int):
    done = llmrun(*(str(model) if a == "MODEL" else a for a in args), stdin="x" if args[0] == "chat" else "")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr


def test_a_session_goes_on_off_a_terminal_too(llmrun, model: Path, tmp_path: Path):
    for text in ("one", "two"):
        assert llmrun("chat", str(model), "-n", "3", "--ignore-eos", "--session", "s", stdin=text).returncode == 0
    saved = json.loads((tmp_path / "home" / "data" / "sessions" / "s.json").read_text())
    assert [m["content"] for m in saved["messages"][::2]] == ["one", "two"]


def test_ctrl_c_keeps_the_text_and_gives_130(env, tmp_path: Path, model: Path):
    command = [sys.executable, "-m", "strata_cli", "run", str(model), "hi", "--ignore-eos", "--ctx", "512", "-n", "400"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=tmp_path) as process:
        assert process.stdout and process.stderr
        first = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert first
    # A tiny model may have finished before the signal came; whatever came out is kept either way.
    assert process.returncode in (130, 0)
    assert (first + rest).endswith(b"\n")
    assert b"Traceback" not in errors


def test_bn_02_a_single_token_is_measured(llmrun, model: Path):
    done = llmrun("bench", str(model), "-p", "8", "-n", "1", "-r", "1", "-o", "json")
    document = json.loads(done.stdout)
    assert document["schema"] == "llmrun.bench.v1"
    assert [row["test"] for row in document["rows"]] == ["pp8@d0", "tg1@d0"]
    assert all(row["median_tps"] > 0 for row in document["rows"])
    assert document["rows"][0]["product_share"] > 0
    assert document["rows"][1]["bandwidth_share"] > 0
    assert document["threads"] == [document["rows"][0]["threads"]]
    assert len(document["model"]["sha256"]) == 64


def test_bench_takes_lists_and_depths_and_writes_a_file(llmrun, model: Path, tmp_path: Path):
    shape = ("-p", "4-8*2", "-n", "2", "-d", "0,16", "--pg", "4,2", "-r", "2", "--threads", "1,2")
    done = llmrun("bench", str(model), *shape, "-o", "csv", "--output", "b.csv")
    assert (done.returncode, done.stdout) == (0, "")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "b.csv").read_text())))
    tests = [f"{t}@d{d}" for d in (0, 16) for t in ("pp4", "pp8", "tg2", "pp4+tg2")]
    assert [(r["threads"], r["test"]) for r in rows] == [(t, name) for t in ("1", "2") for name in tests]


def test_bench_prints_the_table(llmrun, model: Path):
    done = llmrun("bench", str(model), "-p", "8", "-n", "2", "-r", "1")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].startswith("| model ")
    assert "| CPU " in done.stdout


def test_bench_compares_speculation_methods_on_text_and_on_questions(llmrun, model: Path):
    done = llmrun("bench", str(model), "--spec", "none,ngram", "-n", "8", "-r", "1", "-o", "json")
    rows = json.loads(done.stdout)["rows"]
    assert [(row["test"], row["spec"], row["tokens"]) for row in rows] == [("tg8", "none", 8), ("tg8", "ngram", 8)]
    assert all(row["same_answers"] for row in rows)
    asked = llmrun("bench", str(model), "--suite", "sums", "--questions", "2", "--spec", "none", "-o", "csv")
    (row,) = csv.DictReader(io.StringIO(asked.stdout))
    assert (row["test"], row["asked"], row["same_answers"]) == ("sums x2", "2", "True")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--spec", "none,magic"), "'magic' is not one of"),
        (("--spec", "none,ngram", "-n", "0"), "prompts alone are the same"),
        (("--spec", "none,ngram", "-t", "1,2"), "under one setting"),
        (("--suite", "mmlu"), "no such suite"),
        (("--spec", "dflash"), "no drafter for dflash is known"),
    ],
)
def test_bench_refuses_what_cannot_be_compared(llmrun, model: Path, args, said):
    done = llmrun("bench", str(model), *args)
    assert done.returncode in (2, 3)
    assert said in done.stderr


def test_a_run_with_drafts_says_what_drafts_and_what_they_did(llmrun, model: Path):
    asked = ("run", str(model), "one two one two", "-n", "24", "--temp", "0", "--ignore-eos")
    plain, done = (
        llmrun(*asked),
        llmrun(*asked, "--spec", "ngram", "--spec-n-max", "3", "--spec-adaptive", "off", "--stats"),
    )
    assert done.stdout == plain.stdout
    lines = done.stderr.splitlines()
    assert "drafter ngram: no weights, up to 3 drafts a step" in lines
    assert any(line.startswith("drafts: ") for line in lines)


def test_a_drafter_that_is_not_there_is_refused_by_name(llmrun, model: Path):
    done = llmrun("run", str(model), "hi", "--spec", "dflash")
    assert done.returncode == 3 and "no drafter for dflash is known" in done.stderr
    done = llmrun("run", str(model), "hi", "--spec", "draft", "--draft", "./no-such.gguf")
    assert done.returncode == 3 and "no-such.gguf" in done.stderr
