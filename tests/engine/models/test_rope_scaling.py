"""Every rope scaling against transformers, in both spellings of config.json and through GGUF keys."""

from __future__ import annotations

import random

import numpy as np
import pytest

from strata_engine.errors import UsageError
from strata_engine.formats.open import open_weights
from strata_engine.models.config import read_config
from strata_engine.models.llama import Llama
from strata_engine.models.rotary import make_rotary
from strata_kernels.reference.ops import ReferenceOps
from tests.support.forward import Runner
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_models import gguf_metadata, gguf_tensors, memory_source, oracle_logits, tiny_model

IDS = random.Random(6).choices(range(128), k=70)
THETA = {"rope_theta": 5000.0}
SCALINGS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "yarn with betas": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "attention_factor": 0.7,
        "truncate": False,
    },
    "yarn with mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "mscale": 0.9,
        "mscale_all_dim": 0.4,
    },
}


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS.keys())
def test_scaled_logits_equal_transformers(scaling):
    model = tiny_model("llama", rope_parameters={**THETA, **scaling})
    ours = Runner(memory_source(model), ReferenceOps()).all_logits(IDS)
    assert (ours - oracle_logits(model, IDS)).abs().max() <= 1e-4


@pytest.mark.parametrize("name", ["linear", "llama3", "yarn"])
def test_a_scaling_changes_the_logits(name):
    model, plain = (tiny_model("llama", rope_parameters={**THETA, **SCALINGS[n]}) for n in (name, "default"))
    assert (oracle_logits(model, IDS) - oracle_logits(plain, IDS)).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["linear", "llama3", "yarn"])
def test_the_old_spelling_of_config_json_means_the_same(name):
    model = tiny_model("llama", rope_parameters={**THETA, **SCALINGS[name]})
    scaling = {("type" if k == "rope_type" else k): v for k, v in SCALINGS[name].items()}
    old = memory_source(model, rope_parameters=None, rope_scaling=scaling, **THETA)
    assert read_config(old, "llama", Llama.traits).rope == Llama.configure(memory_source(model)).rope


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su"])
def test_another_scaling_is_refused_by_name(kind):
    source = memory_source(tiny_model("llama"), rope_parameters={**THETA, "rope_type": kind, "factor": 2.0})
    with pytest.raises(UsageError, match=kind):
        Llama.configure(source)


@pytest.mark.parametrize("name", ["linear", "yarn"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_scaling_keys_of_a_gguf_file(tmp_path, name, family):
    model = tiny_model(family, rope_parameters={**THETA, **SCALINGS[name]})
    keys = {**gguf_metadata(model), "{a}.rope.scaling.type": name, "{a}.rope.scaling.factor": SCALINGS[name]["factor"]}
    if name == "yarn":
        keys["{a}.rope.scaling.original_context_length"] = 32
    write_gguf(tmp_path / "m.gguf", family, keys, gguf_tensors(model, family))
    ours = Runner(open_weights(tmp_path / "m.gguf"), ReferenceOps()).all_logits(IDS)
    assert (ours - oracle_logits(model, IDS)).abs().max() <= 1e-4


def test_a_rope_factor_tensor_of_a_gguf_file_is_llama3_scaling(tmp_path):
    model = tiny_model("llama", rope_parameters={**THETA, **SCALINGS["llama3"]})
    plain = tiny_model("llama", rope_parameters={**THETA, **SCALINGS["default"]})
    scaled, own = (make_rotary(Llama.configure(memory_source(m)).rope).inverse_frequencies for m in (model, plain))
    tensors = {**gguf_tensors(model, "llama"), "rope_freqs.weight": own / scaled}
    write_gguf(tmp_path / "m.gguf", "llama", gguf_metadata(model), tensors)
    ours = Runner(open_weights(tmp_path / "m.gguf"), ReferenceOps()).all_logits(IDS)
    assert (ours - oracle_logits(model, IDS)).abs().max() <= 1e-4


def test_a_part_of_the_head_can_rotate_alone():
    config = Llama.configure(memory_source(tiny_model("llama"), partial_rotary_factor=0.5, rope_parameters=None))
    assert config.rope.dims == 8
    assert np.array_equal(make_rotary(config.rope).inverse_frequencies, np.float32([1, 0.1, 0.01, 0.001]))
