"""serve, ps and stop as typed: flags that are wrong, and a server that is there or not."""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path

import httpx
import pytest

from strata_cli.address import parse_address
from strata_cli.commands.serve import named_models, served_models
from strata_cli.main import main
from strata_cli.server.options import ServerOptions
from strata_cli.server_record import ServerRecord, write_record
from strata_engine.config import EngineConfig
from strata_engine.env import Env
from strata_engine.errors import UsageError
from strata_engine.registry.store import Store
from tests.support.fake_service import FakeService
from tests.support.live_server import live_server
from tests.support.process import server_process
from tests.support.registry import put_model


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in [n for n in os.environ if n.startswith("LLMRUN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LLMRUN_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def served(home):
    """A live server that the commands find by its record."""
    service = FakeService()
    service.load("tiny")
    with live_server(service, ServerOptions(drain_s=1.0)) as live:
        port = parse_address(live.url).port
        write_record(home / "state" / "server.json", ServerRecord(os.getpid(), "127.0.0.1", port))
        yield live
    service.close()


def run(capsys, *args: str) -> tuple[int, str, str]:
    code = main(list(args))
    found = capsys.readouterr()
    return code, found.out, found.err


def _bad_flags(tmp: Path) -> list[tuple[list[str], int, str]]:
    return [
        (["--host", "0.0.0.0"], 2, "no API key"),  # noqa: S104
        (["--host", "::"], 2, "no API key"),
        (["--host", "a b"], 2, "not a server address"),
        (["--unix", str(tmp / "s"), "--port", "1"], 2, "--unix"),
        (["--tls-key", "x"], 2, "go together"),
        (["--tls-key", "/nope", "--tls-cert", "/nope"], 3, "no such file"),
        (["--api-key-file", "/nope"], 3, "no such file"),
        (["--api-key", "a b"], 2, "without blanks"),
        (["--api-prefix", "a b"], 2, "not a path"),
        (["--drain", "soon"], 2, "--drain"),
        (["--request-timeout", "0"], 2, "--request-timeout"),
        (["--port", "99999"], 2, "--port"),
        (["--max-queue", "-1"], 2, "--max-queue"),
        (["--alias", "x"], 2, "--alias x"),
        (["--ui"], 2, "--ui"),
        (["./no-such-file.gguf", "--port", "0"], 3, "no-such-file"),
        (["no-such-model-anywhere", "--port", "0"], 3, "no-such-model-anywhere"),
    ]


@pytest.mark.parametrize("number", range(17))
def test_a_wrong_flag_is_one_clear_error(home, capsys, number):
    args, code, text = _bad_flags(home)[number]
    found, out, err = run(capsys, "serve", *args)
    assert (found, out) == (code, "")
    assert text in err
    assert "Traceback" not in err
    assert not (home / "state" / "server.json").exists()


def test_a_taken_port_is_exit_code_9(served, capsys, monkeypatch):
    port = str(parse_address(served.url).port)
    for spelling in (["--port", port], ["--host", f":{port}"], ["--host", f"http://127.0.0.1:{port}"]):
        code, _, err = run(capsys, "serve", *spelling)
        assert code == 9
        assert f"port {port} on 127.0.0.1 is in use by another llmrun server" in err
        assert "--port 0" in err
    monkeypatch.setenv("LLMRUN_HOST", f"127.0.0.1:{port}")
    assert run(capsys, "serve")[0] == 9


def test_without_a_server_nothing_is_loaded(home, capsys):
    assert run(capsys, "ps") == (0, "NAME  DEVICE  SIZE  CTX  RUNNING  WAITING  T/S  ACCEPT\n",
                                 "no server is running (llmrun serve)\n")  # fmt: skip
    code, out, _ = run(capsys, "ps", "--json")
    assert (code, json.loads(out)["models"]) == (0, [])
    assert run(capsys, "stop", "tiny")[0] == 9
    assert run(capsys, "ps", "--server", "127.0.0.1:9")[0] == 9


def test_proxy_variables_do_not_matter(served, capsys, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    code, out, err = run(capsys, "ps")
    assert code == 0
    assert "tiny" in out
    assert err == ""


def test_ps_and_stop(served, capsys):
    code, out, _ = run(capsys, "ps")
    assert code == 0
    assert out.splitlines()[1].split() == ["tiny", "cpu", "4.1", "kB", "512", "0/4", "0", "-", "-"]
    document = json.loads(run(capsys, "ps", "--json")[1])
    assert (document["schema"], document["models"][0]["name"]) == ("llmrun.ps.v1", "tiny")
    assert run(capsys, "stop")[0] == run(capsys, "stop", "tiny", "--all")[0] == 2
    assert run(capsys, "stop", "other")[0] == 3
    assert run(capsys, "stop", "tiny") == (0, "tiny: 4.1 kB freed\n", "")
    assert run(capsys, "stop", "tiny")[0] == 3
    assert run(capsys, "stop", "--all") == (0, "nothing was loaded\n", "")
    assert json.loads(run(capsys, "stop", "--all", "--json")[1])["freed_bytes"] == 0


def test_cl_21_a_model_that_the_server_has_loaded_is_not_removed(served, home, capsys):
    store = Store(Env({"LLMRUN_HOME": str(home)}).paths())
    put_model(store, "tiny", {"m.gguf": b"weights"})
    code, out, err = run(capsys, "rm", "tiny")
    assert (code, out) == (2, "")
    assert err == "error: tiny is loaded by the running server\n  try: llmrun stop tiny, or --force\n"
    assert [m.reference for m in store.manifests()] == ["tiny"]
    assert run(capsys, "stop", "tiny")[0] == run(capsys, "rm", "tiny")[0] == 0
    assert store.manifests() == []


def test_names_and_aliases():
    config = EngineConfig()
    named = named_models(["a", "b"], ["x=a", "y=a"])
    assert [one.names for one in served_models(named, {"a": "a", "b": "b"}, config)] == [("x", "y", "a"), ("b",)]
    assert named_models(["a"], ["x"]) == {"a": ["x"]}
    for wrong in (["x"], ["x=c"], ["=a"], ["b=a"], ["x=a", "x=b"]):
        with pytest.raises(UsageError):
            named_models(["a", "b"], wrong)


def test_a_file_is_known_by_its_stem(tmp_path):
    file = tmp_path / "some.gguf"
    file.touch()
    (one,) = served_models({str(file): []}, {str(file): "some"}, EngineConfig())
    assert one.names == ("some", str(file))


def test_a_home_that_cannot_be_written_is_no_reason_not_to_serve(tmp_path):
    home = tmp_path / "home"
    home.touch()
    with server_process(home, ["-m", "tests.support.fake_serve", "1"]) as (process, url):
        assert httpx.get(f"{url}/health", trust_env=False).json() == {"status": "ok"}
        process.terminate()
        _, err = process.communicate(timeout=20)
    assert process.returncode == 143
    assert f"warning: {home}/state/server.json cannot be written (Not a directory)" in err


def test_a_record_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_record(tmp_path / "state" / "server.json", ServerRecord(1, "127.0.0.1", 1))
    assert list((tmp_path / "state").iterdir()) == []


@pytest.mark.slow
def test_tls_and_prefix(home, tmp_path):
    key, certificate = _self_signed(tmp_path)
    arguments = [
        "-m",
        "strata_cli",
        "serve",
        "--port",
        "0",
        "--tls-key",
        key,
        "--tls-cert",
        certificate,
        "--api-prefix",
        "x",
    ]
    with server_process(home, arguments) as (process, url):
        assert url.startswith("https://127.0.0.1:")
        assert url.endswith("/x")
        trust = ssl.create_default_context(cafile=certificate)
        trust.check_hostname = False
        with httpx.Client(verify=trust, trust_env=False) as http:
            assert http.get(f"{url}/v1/models").json() == {"object": "list", "data": []}
        process.terminate()
        assert process.wait(10) == 143


@pytest.mark.slow
def test_a_socket_file(home, tmp_path):
    path = str(tmp_path / "llmrun.sock")
    with server_process(home, ["-m", "strata_cli", "serve", "--unix", path]) as (process, url):
        assert url == f"unix:{path}"
        transport = httpx.HTTPTransport(uds=path)
        with httpx.Client(transport=transport, base_url="http://anything") as http:
            assert http.get("/health").json() == {"status": "ok"}
        found, names = main(["ps"]), json.loads((home / "state" / "server.json").read_text())
        assert (found, names["unix"]) == (0, path)
        process.terminate()
        assert process.wait(10) == 143
    assert not Path(path).exists()


def _self_signed(directory: Path) -> tuple[str, str]:
    import subprocess

    key, certificate = str(directory / "key.pem"), str(directory / "cert.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, 
               "-days", "2",
               "-subj", "/CN=localhost"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return key, certificate
