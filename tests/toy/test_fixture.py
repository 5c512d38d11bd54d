"""The trained toy: what it answers from both formats, and through every command."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pexpect
import pytest
from safetensors.torch import load_file

from strata_backends.cpu import CpuBackend
from strata_cli.server.names import Served
from strata_engine.config import EngineConfig
from strata_engine.events import Reasoning
from strata_engine.formats.open import open_weights
from strata_engine.models.load import load_model
from strata_engine.models.mtp import load_draft
from strata_engine.paths import Paths
from strata_engine.registry.catalog import load_catalog
from strata_engine.registry.store import Store
from strata_engine.runtime.service import LocalService
from strata_kernels.native import NativeOps
from tests.support.live_server import live_server
from tests.support.program import environment, run
from tests.support.toy.evaluate import ask, held_out_problems, open_toy
from tests.support.toy.sums import held_out
from tests.support.toy.to_gguf import tensors, tiled, write_toy

TOY = Path(__file__).resolve().parents[1] / "fixtures" / "toy"
FORMS = {"safetensors": TOY, "gguf": TOY / "toy-Q8_0.gguf"}
QUESTION, RESULT = "What is 37 + 26?", "37 + 26 = 63."


@pytest.fixture(params=FORMS.values(), ids=FORMS)
def form(request) -> Path:
    return request.param


@pytest.fixture(scope="module")
def problems():
    found = held_out_problems(20)
    assert all(held_out(*[int(n) for n in p.steps.split(".")[0].replace("-", "+").split(" + ")]) for p in found)
    return found


def share(engine, problems, thinking: bool) -> float:
    marked = ask(engine, problems, thinking)
    return sum(one.right for one in marked) / len(marked)


@pytest.mark.parametrize("thinking", [True, False], ids=["thinking", "plain"])
def test_nine_of_ten_held_out_sums_are_right(form, problems, thinking):
    with open_toy(form) as engine:
        assert share(engine, problems, thinking) >= 0.9


@pytest.mark.parametrize("type_name", ["BF16", "Q4_K"])
def test_other_storage_types_answer_too(tmp_path, problems, type_name):
    with open_toy(write_toy(TOY, tmp_path / "toy.gguf", type_name)) as engine:
        assert share(engine, problems[:10], thinking=True) >= 0.9


def test_the_committed_gguf_is_what_the_script_writes(tmp_path):
    assert write_toy(TOY, tmp_path / "toy.gguf", "Q8_0").read_bytes() == FORMS["gguf"].read_bytes()


def test_value_heads_are_tiled_in_gguf_and_grouped_in_safetensors():
    config = json.loads((TOY / "config.json").read_text())
    values = {name: value.float().numpy() for name, value in load_file(TOY / "model.safetensors").items()}
    found = tensors(values, config)
    keys, width = config["linear_num_key_heads"], config["linear_value_head_dim"]
    z = values["model.layers.0.linear_attn.in_proj_z.weight"].reshape(-1, width, config["hidden_size"])
    # GGUF head j reads key head j % keys, Hugging Face head h reads key head h // (values / keys)
    assert [h // (config["linear_num_value_heads"] // keys) for h in tiled(config)] == [
        j % keys for j in range(config["linear_num_value_heads"])
    ]
    assert np.array_equal(found["blk.0.attn_gate.weight"].reshape(z.shape), z[tiled(config)])


def test_both_formats_hold_the_draft_head():
    names = open_weights([FORMS["gguf"]]).tensors().keys()
    assert {"blk.4.nextn.eh_proj.weight", "blk.4.nextn.enorm.weight", "blk.4.attn_q.weight"} <= names
    assert {"mtp.fc.weight", "mtp.norm.weight"} <= open_weights(TOY).tensors().keys()


def test_the_draft_heads_of_both_formats_are_the_same():
    """GGUF holds norms with their 1 added: one that is forgotten leaves drafts that are hardly ever right."""
    heads = []
    for path in (TOY, FORMS["gguf"]):
        source, ops = open_weights(path if path.is_dir() else [path]), NativeOps(1)
        head = load_draft(source, load_model(source, ops).model, ops)
        assert head is not None
        heads.append(head)
    for name in ("embed_norm", "hidden_norm", "norm"):
        assert np.array_equal(getattr(heads[0], name), getattr(heads[1], name))


def test_run_answers(form, tmp_path):
    done = run(["run", str(form), "--temp", "0", QUESTION], environment(tmp_path))
    assert (done.code, done.out.strip()) == (0, RESULT)
    assert "Ones: 7 + 6 = 13" in done.err  # the thought


def test_chat_answers_twice(form, tmp_path):
    command = ["-m", "strata_cli", "chat", str(form), "--temp", "0", "--hide-thinking"]
    child = pexpect.spawn(
        sys.executable, command, env={**environment(tmp_path), "TERM": "xterm"}, encoding="utf-8", timeout=60
    )
    try:
        child.expect_exact("/help, Ctrl-D leaves")
        for question, result in ((QUESTION, RESULT), ("What is 50 - 8?", "50 - 8 = 42.")):
            child.expect_exact("\x1b[?2004h")
            child.send(question + "\r")
            child.expect_exact(result)
        child.expect_exact("\x1b[?2004h")
        child.send("/bye\r")
        child.expect(pexpect.EOF)
    finally:
        child.close(force=True)
    assert child.exitstatus == 0


def test_serve_answers_and_splits_the_thought_off(form, tmp_path):
    paths = Paths(*(tmp_path / name for name in ("config", "data", "models", "state", "cache")))
    config = EngineConfig(context_tokens=512, max_sequences=2)
    with LocalService(load_catalog(), Store(paths), config, lambda device: CpuBackend()) as service:
        model = service.load(str(form))
        with live_server(service, served=[Served(model.reference, ("toy",))]) as live:
            messages = [{"role": "user", "content": QUESTION}]
            body = {"model": "toy", "messages": messages, "temperature": 0}
            message = live.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert message["content"].strip() == RESULT
    assert message["reasoning_content"].startswith("37 + 26. Ones: 7 + 6 = 13")


def test_bench_measures(form, tmp_path):
    args = ["bench", str(form), "-p", "32", "-n", "8", "-r", "1", "-o", "json"]
    done = run(args, environment(tmp_path))
    assert done.code == 0, done.err
    rows = json.loads(done.out)["rows"]
    assert [row["test"] for row in rows] == ["pp32@d0", "tg8@d0"] and all(row["median_tps"] > 0 for row in rows)


def test_a_thought_is_streamed_as_reasoning():
    from strata_engine.chat import ChatRequest, Message
    from tests.support.toy.evaluate import GREEDY

    with open_toy(TOY) as engine:
        events = list(engine.submit(ChatRequest((Message.of("user", QUESTION),)), GREEDY))
    assert "carry 1" in "".join(e.text for e in events if isinstance(e, Reasoning))
