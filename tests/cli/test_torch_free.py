"""The native path of run, bench and serve never imports torch, which takes longer than all the rest of a start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from strata_kernels.binding import KernelsUnavailable, load
from tests.support.program import environment
from tests.support.tiny_llama import tiny_llama

SLOW_TO_IMPORT = {"torch", "transformers", "huggingface_hub", "gguf", "prompt_toolkit", "safetensors"}
CHILD = """
import sys
from strata_cli.main import main
code = main(sys.argv[1:])
sys.stderr.write("LOADED " + " ".join(sorted({name.split(".")[0] for name in sys.modules})) + "\\n")
sys.exit(code)
"""


@pytest.fixture(scope="module", autouse=True)
def native_kernels() -> None:
    try:
        load()
    except KernelsUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


def child(home: Path, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, *map(str, args)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=environment(home), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    )


def loaded(stderr: str) -> set[str]:
    return set(stderr.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("args", [
    ("run", "{model}", "-n", "4", "--temp", "0", "hello"), ("bench", "{model}", "-p", "8", "-n", "4", "-r", "1"),
], ids=["run", "bench"])  # fmt: skip
def test_a_command_that_answers_natively_imports_no_torch(tmp_path, model, args):
    with child(tmp_path, *(arg.format(model=model) for arg in args)) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and out, err
    found = loaded(err)
    assert "strata_kernels" in found and not found & SLOW_TO_IMPORT


def test_run_imports_neither_the_http_client_nor_the_terminal_libraries(tmp_path, model):
    with child(tmp_path, "run", model, "-n", "1", "hello") as process:
        _, err = process.communicate(timeout=60)
    assert loaded(err) & {"httpx", "rich", "starlette", "pygments", "asyncio", "pydantic"} == set()


def test_a_server_that_answered_a_request_natively_imports_no_torch(tmp_path, model):
    socket = tmp_path / "s"
    with child(tmp_path, "serve", model, "--unix", socket) as process:
        try:
            assert process.stdout is not None and "is ready on" in process.stdout.readline()
            transport = httpx.HTTPTransport(uds=str(socket))
            with httpx.Client(transport=transport, base_url="http://local", timeout=60) as http:
                body = {"model": http.get("/v1/models").json()["data"][0]["id"], "prompt": "hello", "max_tokens": 4}
                assert http.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] >= 1
        finally:
            process.terminate()
        _, err = process.communicate(timeout=60)
    found = loaded(err)
    assert "strata_kernels" in found and not found & SLOW_TO_IMPORT
