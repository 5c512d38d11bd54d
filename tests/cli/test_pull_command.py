"""pull on a fake hub: flags, output, exit codes; and ensure_present, which run, chat and serve use."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_cli.fetch import ensure_present
from strata_cli.hubsettings import hub_settings
from strata_cli.output import Output
from strata_cli.progress import PullProgress, amount
from strata_engine.env import Env
from strata_engine.errors import NetworkError, NotFound
from strata_engine.registry.progress import Progress
from tests.support.command import app_of, call, values
from tests.support.fake_hub import COMMIT, FakeHub
from tests.support.program import environment, run
from tests.support.registry import gguf_like, sha, store_in

MODEL = gguf_like(400_000)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as running:
        running.repository("u/r", {"m-Q4_K_M.gguf": MODEL, "m-Q8_0.gguf": MODEL + b"8"})
        yield running


@pytest.fixture
def env(tmp_path: Path, hub: FakeHub) -> dict[str, str]:
    return values(tmp_path, HF_ENDPOINT=hub.url)


def test_a_pull_prints_its_result_on_stdout_and_the_rest_on_stderr(env):
    done = call(["pull", "u/r"], env)
    assert done.code == 0
    assert done.out == "hf.co/u/r:Q4_K_M is ready (400 kB, 1 file)\n"
    assert "from huggingface u/r" in done.err
    assert "downloading m-Q4_K_M.gguf" in done.err


def test_quiet_says_nothing(env):
    done = call(["pull", "u/r", "-q"], env)
    assert (done.code, done.out, done.err) == (0, "", "")


def test_json_is_one_document(env):
    document = json.loads(call(["pull", "u/r", "--json"], env).out)
    assert document["schema"] == "llmrun.pull.v1"
    model = document["models"][0]
    assert (model["reference"], model["downloaded_bytes"]) == ("hf.co/u/r:Q4_K_M", len(MODEL))
    assert model["files"][0]["sha256"] == sha(MODEL)
    again = json.loads(call(["pull", "u/r", "--json"], env).out)["models"][0]
    assert again["downloaded_bytes"] == 0


def test_jsonl_is_events_and_then_the_result(env):
    lines = [json.loads(line) for line in call(["pull", "u/r", "--jsonl"], env).out.splitlines()]
    assert {e["schema"] for e in lines[:-1]} == {"llmrun.pull_event.v1"}
    assert lines[-1]["schema"] == "llmrun.pull.v1"
    assert [e["event"] for e in lines if e.get("event") in ("source", "plan", "start", "done")] == [
        "source",
        "plan",
        "start",
        "done",
    ]


def test_a_quant_may_be_a_flag(env):
    assert "hf.co/u/r:Q8_0 is ready" in call(["pull", "u/r", "--quant", "Q8_0"], env).out
    assert call(["pull", "u/r:Q8_0", "--quant", "Q4_K_M"], env).code == 2


def test_a_revision_may_be_a_flag(env, hub: FakeHub):
    assert call(["pull", "u/r", "--revision", COMMIT], env).code == 0
    assert hub.asked[0].path.endswith(f"/revision/{COMMIT}")
    assert call(["pull", "u/r", "--revision", "nosuch"], env).code == 3


def test_a_dry_run_lists_and_fetches_nothing(env, hub: FakeHub, tmp_path: Path):
    done = call(["pull", "u/r", "--dry-run"], env)
    assert "m-Q4_K_M.gguf" in done.out
    assert "400 kB to fetch from huggingface u/r" in done.out
    assert not [a for a in hub.asked if "/resolve/" in a.path]
    assert not (tmp_path / "llmrun").exists()


def test_a_mirror_takes_the_place_of_the_endpoint(env, hub: FakeHub):
    done = call(["pull", "u/r", "--mirror", hub.url], {**env, "HF_ENDPOINT": "http://127.0.0.1:1"})
    assert done.code == 0


def test_a_source_can_be_chosen(env):
    assert call(["pull", "smollm2", "--source", "modelscope"], env).code == 3
    assert call(["pull", "u/r", "--source", "nowhere"], env).code == 2


@pytest.mark.parametrize(("flag", "value"), [("--limit-rate", "fast"), ("--limit-rate", "0"), ("--connections", "0"),
                         ("--verify", "maybe")])  # fmt: skip
def test_wrong_values_are_usage_errors(env, flag: str, value: str):
    assert call(["pull", "u/r", flag, value], env).code == 2


def test_several_models_are_pulled_in_one_go(env):
    out = call(["pull", "u/r:Q4_K_M", "u/r:Q8_0"], env).out
    assert out.count("is ready") == 2


@pytest.mark.parametrize(("args", "code"), [(["pull"], 2), (["pull", "nosuch"], 3), (["pull", "qwen3.5-fq"], 3),
                         (["pull", "u/none"], 3), (["pull", "a b"], 2), (["--offline", "pull", "u/r"], 5)])  # fmt: skip
def test_a_pull_that_cannot_be_has_its_exit_code(env, args: list[str], code: int):
    done = call(args, env)
    assert done.code == code, done.err
    assert done.err.splitlines()[-1].startswith("  try: ") or done.err.splitlines()[-1].startswith("error: ")


def test_what_is_here_is_not_fetched_when_the_hub_is_away(env):
    call(["pull", "u/r"], env)
    done = call(["pull", "u/r"], {**env, "HF_ENDPOINT": "http://127.0.0.1:1"})
    assert done.code == 0
    assert "whether there is a newer one is not known" in done.err
    assert call(["--offline", "pull", "u/r"], env).code == 0


def test_the_drafters_come_on_request(env, hub: FakeHub, tmp_path: Path):
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    weights = struct.pack("<Q", len(header)) + header + bytes(4)
    hub.repository("d/d", {"config.json": b"{}", "model.safetensors": weights}, small=("config.json",))
    catalog = tmp_path / "m.yaml"
    catalog.write_text("models:\n  - name: big\n    source: {repo: u/r}\n    files: [m-Q8_0.gguf]\n"
                       "    drafters:\n      mtp: {built_in: true}\n      flash: {source: {repo: d/d}}\n")  # fmt: skip
    done = call(["--models", str(catalog), "pull", "big", "--draft"], env)
    assert done.code == 0, done.err
    assert "big+flash:default is ready" in done.out
    assert "drafter mtp is part of the model" in done.err
    assert call(["--models", str(catalog), "rm", "big+flash", "-y"], env).code == 0


def test_a_pull_imports_neither_torch_nor_numpy(env, tmp_path: Path, hub: FakeHub):
    child = environment(tmp_path, HF_ENDPOINT=hub.url, LLMRUN_OFFLINE=None)
    code = ("import sys; from strata_cli.main import main; code = main(['pull', 'u/r']); "
            "sys.exit(code or (99 if {'torch', 'numpy'} & set(sys.modules) else 0))")  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], env=child, check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("changes", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {}])
def test_no_escape_byte_reaches_a_pipe(hub: FakeHub, tmp_path: Path, changes: dict[str, str]):
    done = run(["pull", "u/r"], environment(tmp_path, HF_ENDPOINT=hub.url, LLMRUN_OFFLINE=None, **changes))
    assert done.code == 0
    assert "\x1b" not in done.out + done.err


def test_ensure_present_fetches_and_says_so(env, tmp_path: Path):
    app, _ = app_of(["ls"], env)
    files = ensure_present(app, "u/r")
    assert files.files[0].path.read_bytes() == MODEL
    assert isinstance(app.output.stderr, io.StringIO)
    assert "not on this disk yet" in app.output.stderr.getvalue()
    assert app.output.stdout.getvalue() == ""  # type: ignore[attr-defined]


def test_ensure_present_keeps_stdout_clean_in_json_lines(env):
    app, _ = app_of(["ls", "--jsonl"], env)
    ensure_present(app, "u/r")
    assert app.output.stdout.getvalue() == ""  # type: ignore[attr-defined]


def test_ensure_present_refuses_offline_with_what_is_missing(env):
    app, _ = app_of(["--offline", "ls"], env)
    with pytest.raises(NetworkError, match=r"smollm2:q4_1 is not on this disk \(98.4 MB\)"):
        ensure_present(app, "smollm2")


def test_ensure_present_says_how_to_register_a_local_model(env):
    app, _ = app_of(["ls"], env)
    with pytest.raises(NotFound, match="no public location") as caught:
        ensure_present(app, "qwen3.6-fq")
    assert "llmrun cp PATH qwen3.6-fq" in caught.value.hint


def test_settings_of_the_hubs_come_from_the_environment(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("hf_file\n")
    made = hub_settings(Env({"HOME": str(tmp_path), "HF_TOKEN_PATH": str(token), "HF_ENDPOINT": "mirror.example",
                             "MODELSCOPE_API_TOKEN": "ms"}))  # fmt: skip
    assert (made.hf_token, made.hf_endpoint, made.modelscope_token) == ("hf_file", "https://mirror.example", "ms")
    assert made.hf_cache == tmp_path / ".cache" / "huggingface" / "hub"
    given = hub_settings(Env({"HF_TOKEN": "hf_env", "HF_HOME": "/hf", "HF_HUB_CACHE": "/c"}), mirror="http://m")
    assert (given.hf_token, given.hf_endpoint, given.hf_cache) == ("hf_env", "http://m", Path("/c"))


class Screen(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def feed(report: PullProgress) -> None:
    with report:
        report(Progress("source", "m", message="somewhere"))
        report(Progress("start", "m", "f.gguf", 0, 1000))
        for done in (0, 500, 1000):
            report(Progress("download", "m", "f.gguf", done, 1000))
        report(Progress("verify", "m", "f.gguf", 1000, 1000))
        report(Progress("done", "m", "f.gguf", 1000, 1000))
        report(Progress("switch", "m", message="[/INST] went away"))


def test_bars_are_drawn_on_a_terminal():
    screen = Screen()
    feed(PullProgress(Output("text", colour=True, stdout=io.StringIO(), stderr=screen), terminal=True))
    assert "f.gguf" in screen.getvalue()
    assert "[/INST] went away" in screen.getvalue()


def test_plain_lines_are_written_elsewhere():
    err = io.StringIO()
    feed(PullProgress(Output("text", stdout=io.StringIO(), stderr=err), terminal=False))
    assert err.getvalue().splitlines() == [
        "m: from somewhere",
        "downloading f.gguf (1 kB)",
        "[/INST] went away; trying the next source",
    ]


def test_waiting_for_another_process_is_said_once():
    err = io.StringIO()
    with PullProgress(Output("text", stdout=io.StringIO(), stderr=err), terminal=False) as report:
        for done in (10, 20):
            report(Progress("waiting", "m", "f.gguf", done, 100, "process 7 fetches it"))
    assert err.getvalue() == "f.gguf: process 7 fetches it; waiting for it\n"


def test_an_amount_tells_share_rate_and_rest():
    assert (
        amount(Progress("download", "m", "f", 50_000_000, 100_000_000), 10e6) == "50 % of 100 MB, 10 MB/s, 5.00 s left"
    )
    assert amount(Progress("download", "m", "f", 50_000_000, 0), 0.0) == "50 MB"


def test_a_store_without_a_manifest_is_no_model(env, tmp_path: Path):
    store = store_in(tmp_path / "llmrun")
    store.paths.blobs.mkdir(parents=True)
    store.blob(sha(MODEL)).write_bytes(MODEL)
    assert call(["ls"], env).out == ""
