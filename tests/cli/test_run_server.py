"""run, chat and bench serve against a running server: a real HTTP server over a scripted engine."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strata_cli.main import main
from tests.support.fake_service import FakeService, endless
from tests.support.live_server import live_server


@pytest.fixture
def service() -> Iterator[FakeService]:
    fake = FakeService()
    fake.load("tiny")
    yield fake
    fake.close()


@pytest.fixture
def url(service: FakeService) -> Iterator[str]:
    with live_server(service) as live:
        yield live.url


@pytest.fixture
def llmrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("LLMRUN_HOME", str(tmp_path))
    monkeypatch.delenv("LLMRUN_HOST", raising=False)
    monkeypatch.delenv("LLMRUN_API_KEY", raising=False)

    def run(*args: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        return main(list(args)), *capsys.readouterr()

    return run


Run = Callable[..., tuple[int, str, str]]


def test_a_named_server_answers(llmrun: Run, url: str):
    assert llmrun("run", "tiny", "say: hello", "--server", url) == (0, "hello\n", "")


def test_without_a_model_the_named_servers_own_is_taken(llmrun: Run, url: str):
    assert llmrun("run", "say: hello", "--server", url)[:2] == (0, "hello\n")


def test_a_configured_server_is_used_when_it_has_the_model(llmrun: Run, url: str, monkeypatch, service: FakeService):
    monkeypatch.setenv("LLMRUN_HOST", url)
    assert llmrun("run", "tiny", "say: hello")[:2] == (0, "hello\n")
    assert llmrun("chat", "tiny", stdin="say: again")[:2] == (0, "again\n")
    assert len(service.requests) == 2


@pytest.mark.parametrize("flag", [("--no-server",), ("--ctx", "64")])
def test_a_configured_server_is_left_alone_when_asked(llmrun: Run, url: str, monkeypatch, service, flag):
    monkeypatch.setenv("LLMRUN_HOST", url)
    code, out, err = llmrun("run", "tiny", "hello", *flag)
    assert (code, out, service.requests) == (3, "", [])
    assert "tiny" in err


def test_load_flags_and_a_named_server_contradict(llmrun: Run, url: str):
    code, _, err = llmrun("run", "tiny", "hi", "--server", url, "--kernels", "reference")
    assert code == 2
    assert "--no-server" in err


def test_a_model_the_server_lacks_is_named(llmrun: Run, url: str):
    code, out, err = llmrun("run", "other", "hi", "--server", url)
    assert (code, out) == (3, "")
    assert "other" in err


def test_sampling_flags_reach_the_server_and_its_defaults_count(llmrun: Run, url: str, service: FakeService):
    llmrun("run", "tiny", "hi", "--server", url, "--top-k", "7", "--seed", "3")
    params = service.params[0]
    assert (params.top_k, params.seed, params.temperature) == (7, 3, 0.5)


def test_a_time_limit_ends_an_endless_answer(llmrun: Run, url: str, service: FakeService):
    service.script, service.context, service.pace_s = endless, 10_000_000, 0.001
    code, out, err = llmrun("run", "tiny", "hi", "--server", url, "--timeout", "300ms")
    assert code == 11
    assert set(out.strip()) == {"a"}
    assert "not finished in 0.3 s" in err
    service.wait_until(lambda fake: fake.idle)


def test_bench_serve_reports_what_clients_saw(llmrun: Run, url: str, tmp_path: Path):
    load = ("--num-prompts", "6", "--concurrency", "3", "--prompt-tokens", "4", "--max-tokens", "5")
    more = ("--goodput", "ttft:60000 e2el:60000", "--output", str(tmp_path / "r.json"))
    code, out, _ = llmrun("bench", "serve", "--url", url, *load, *more, "--json")
    found = json.loads(out)
    assert (code, found["schema"], found["requests"], found["failed"]) == (0, "llmrun.bench.serve.v1", 6, 0)
    assert (found["output_tokens"], found["model"]) == (30, "tiny")
    assert found["goodput"]["requests"] == 6
    assert set(found["metrics_ms"]["ttft"]) == {"n", "mean", "median", "std", "p50", "p90", "p95", "p99"}
    assert json.loads((tmp_path / "r.json").read_text()) == found


def test_bench_serve_prints_a_table(llmrun: Run, url: str):
    code, out, _ = llmrun("bench", "serve", "--url", url, "--num-prompts", "2", "--max-tokens", "3")
    assert code == 0
    assert "first token (ttft)" in out
    assert "MEDIAN" in out


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("--url", "http://127.0.0.1:9"), 9),
        ((), 9),
        (("--rate", "-1"), 2),
        (("--goodput", "ttft"), 2),
        (("--goodput", "speed:5"), 2),
        (("--percentiles", "50,x"), 2),
        (("--output", "/nowhere/r.json"), 3),
        (("--num-prompts", "0"), 2),
    ],
)
def test_bench_serve_says_what_is_wrong(llmrun: Run, args: tuple[str, ...], code: int):
    found = llmrun("bench", "serve", *args)
    assert (found[0], found[1]) == (code, "")
    assert found[2].count("error:") == 1
