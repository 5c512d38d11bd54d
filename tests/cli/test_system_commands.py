"""version, hw, fit and cache as a user runs them."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path

import numpy as np
import pytest

from tests.support.program import environment, run
from tests.support.published_configs import config_of
from tests.support.tiny_gguf import write_gguf


@pytest.fixture
def env(tmp_path):
    return environment(tmp_path)


def document(args: list[str], env: dict[str, str], code: int = 0):
    done = run([*args, "--json"], env)
    assert done.code == code, done.err
    return json.loads(done.out)


def test_version_names_program_python_and_torch(env):
    found = document(["version"], env)
    assert found["schema"] == "llmrun.version.v1"
    assert found["python"] == platform.python_version()
    assert found["libraries"]["torch"]
    assert set(found["kernels"]) == {"library", "abi", "build"}


def test_hw_tells_cores_memory_and_overrides(env):
    found = document(["hw"], {**env, "HSA_OVERRIDE_GFX_VERSION": "11.0.0"})
    assert found["cpu"]["usable_cores"] >= 1
    assert 0 < found["memory"]["free_bytes"] <= found["memory"]["total_bytes"]
    assert found["overrides"] == {"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}
    assert "read_gb_s" not in found["memory"]


@pytest.mark.slow
def test_hw_measures_the_memory_when_asked(env):
    assert document(["hw", "--measure"], env)["memory"]["read_gb_s"] > 0.5


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    shapes = {
        "token_embd.weight": (64, 32), "output_norm.weight": (32,), "blk.0.attn_q.weight": (32, 32),
        "blk.0.attn_k.weight": (16, 32), "blk.0.attn_v.weight": (16, 32), "blk.0.attn_output.weight": (32, 32),
        "blk.0.ffn_gate.weight": (64, 32), "blk.0.ffn_up.weight": (64, 32), "blk.0.ffn_down.weight": (32, 64),
    }  # fmt: skip
    tensors = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    metadata = {"{a}.context_length": 512, "{a}.block_count": 1}
    return write_gguf(tmp_path_factory.mktemp("fit") / "m.gguf", "llama", metadata, tensors)[0]


def test_fit_prices_a_file_from_its_header(env, model):
    found = document(["fit", str(model), "--parallel", "1", "--kv-type", "f32"], env)
    assert found["schema"] == "llmrun.fit.v1"
    assert (found["basis"], found["fits"], found["supported"]) == ("files", True, True)
    assert found["kv_token_bytes"] == 32 * 4
    assert found["kv_bytes"] == 512 * 32 * 4
    assert found["context_tokens"] == found["largest_context_tokens"] == 512
    assert found["total_bytes"] == found["weights_bytes"] + found["kv_bytes"] + found["workspace_bytes"]


def test_fit_takes_a_smaller_context_from_its_flag_and_from_the_settings(env, model):
    assert document(["fit", str(model), "--ctx", "64"], env)["context_tokens"] == 64
    assert document(["fit", str(model)], {**env, "LLMRUN_CTX": "128"})["context_tokens"] == 128


def test_fit_counts_the_drafter_it_is_asked_about(env):
    toy = str(Path(__file__).resolve().parents[1] / "fixtures/toy")
    plain, mtp = (document(["fit", toy, "--ctx", "256", *more], env) for more in ((), ("--spec", "mtp")))
    assert (plain["drafter_bytes"], mtp["drafter_bytes"]) == (0, 2 * 890_496)
    assert mtp["total_bytes"] >= plain["total_bytes"] + mtp["drafter_bytes"]
    assert run(["fit", toy, "--spec", "dflash"], env).code == 3


def test_fit_ends_with_7_when_the_margin_leaves_no_room(env, model):
    done = run(["fit", str(model), "--margin", "100TiB"], env)
    assert done.code == 7
    assert "does not fit" in done.out and done.err.startswith("error: ")
    assert document(["fit", str(model), "--margin", "100TiB"], env, code=7)["fits"] is False


def test_fit_of_a_catalog_model_uses_the_catalog_and_names_the_best_variant(env):
    found = document(["fit", "smollm2"], env)
    assert (found["basis"], found["best_variant"]) == ("catalog", "q4_1")


def test_fit_never_says_yes_to_a_model_that_cannot_be_run(env, tmp_path):
    models = "models: [{name: odd, family: gpt7, source: {local: true}, variants: {q: {quant: Q4, weights: 1MB}}}]"
    (tmp_path / "odd.yaml").write_text(models)
    done = run(["--models", str(tmp_path / "odd.yaml"), "fit", "odd"], env)
    assert done.code == 2 and "cannot run gpt7" in done.err and "cannot be run" in done.out


def test_fit_and_show_work_from_a_config_alone(env, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_of("smollm2-135m", "bf16")))
    found = document(["fit", str(tmp_path), "--ctx", "256"], env)
    assert (found["fits"], found["supported"], found["train_context_tokens"]) == (True, True, 8192)
    shown = document(["show", str(tmp_path), "--tensors"], env)["tensors"]
    assert sum(tensor["size"] for tensor in shown) == 2 * 134515008


def test_fit_names_apart_what_stays_on_disk(env, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_of("qwen3.8-flash-next", "bf16")))
    done = run(["fit", str(tmp_path), "--margin", "100TiB"], env)
    assert done.code == 7 and "stays on disk" in done.out and "102 GB" in done.out


@pytest.mark.parametrize(
    ("args", "code"), [(["no-such-model"], 3), (["smollm2", "--margin", "much"], 2), (["smollm2", "--ctx", "x"], 2)]
)
def test_fit_refuses_nonsense(env, args, code):
    done = run(["fit", *args], env)
    assert done.code == code and done.err.startswith("error: ")


def store_blob(home: Path, name: str, content: bytes) -> Path:
    sha256 = hashlib.sha256(content).hexdigest()
    blob = home / "llmrun/data/models/blobs" / f"sha256-{sha256}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    manifest = {
        "schema": "llmrun.manifest.v1", "reference": f"{name}:a", "base": name, "variant": "a", "name": name,
        "root": "test", "source": "test", "revision": "", "directory": False, "pulled_at": 1.0,
        "files": [{"name": "m.gguf", "role": "weights", "size": len(content), "sha256": sha256, "path": ""}],
    }  # fmt: skip
    target = home / "llmrun/data/models/manifests" / f"{name}%3Aa.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(manifest), encoding="utf-8")
    return blob


def test_cache_ls_shows_models_and_what_nobody_needs(env, tmp_path):
    store_blob(tmp_path, "mine", b"weights")
    stray = tmp_path / "llmrun/data/models/blobs" / ("sha256-" + "0" * 64)
    stray.write_bytes(b"left over")
    kinds = {item["name"]: item["kind"] for item in document(["cache", "ls"], env)["items"]}
    assert kinds == {"mine:a": "model", stray.name: "unused"}


def test_cache_prune_removes_the_unused_and_keeps_models(env, tmp_path):
    blob = store_blob(tmp_path, "mine", b"weights")
    stray = blob.with_name("sha256-" + "0" * 64)
    stray.write_bytes(b"left over")
    assert document(["cache", "prune", "--dry-run"], env)["freed_bytes"] == 9
    assert stray.exists()
    assert run(["cache", "prune", "--older-than", "30d"], env).code == 0
    assert stray.exists()
    assert run(["cache", "prune"], env).code == 0
    assert blob.exists() and not stray.exists()


def test_cache_verify_finds_damage_ends_with_6_and_drops_it_when_asked(env, tmp_path):
    blob = store_blob(tmp_path, "mine", b"weights")
    assert run(["cache", "verify"], env).code == 0
    blob.write_bytes(b"wEights")
    done = run(["cache", "verify"], env)
    assert done.code == 6 and "sha256" in done.out and blob.exists()
    found = document(["cache", "verify", "mine", "--drop"], env, code=6)
    assert found["error"]["details"]["dropped"] == [str(blob)]
    assert not blob.exists()


def test_cache_verify_of_an_unknown_name_is_not_found(env):
    assert run(["cache", "verify", "none"], env).code == 3


def test_cache_path_names_the_places(env, tmp_path):
    assert document(["cache", "path"], env)["models"] == str(tmp_path / "llmrun/data/models")


@pytest.mark.parametrize("time", ["-1", "soon", "nan"])
def test_cache_prune_refuses_a_time_that_makes_no_sense(env, time):
    assert run(["cache", "prune", f"--older-than={time}"], env).code == 2
