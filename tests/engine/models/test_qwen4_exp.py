"""qwen4_exp (Flash-Next) against transformers: streams, n-grams, sparse attention; both spellings, any chunking."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.formats.open import open_weights
from strata_engine.models import find_model
from strata_engine.models.load import load_model
from strata_engine.models.ngram_constants import make_multipliers, make_offsets, make_sizes
from strata_kernels.reference.ops import ReferenceOps
from tests.support.forward import Runner, assert_same_bits
from tests.support.tiny_exp import OPTIONS, tiny_exp, write_exp
from tests.support.tiny_models import MemorySource, memory_source, oracle_logits, save_tiny

IDS = random.Random(5).choices(range(128), k=48)
IDS[7] = IDS[8] = IDS[20] = OPTIONS["eos_token_id"]
CHUNKINGS = {"at once": [48], "in odd chunks": [1, 17, 9, 21], "then single tokens": [40] + [1] * 8}
NUMBERS = {
    "blocks of four": {"indexer_budget": 8, "indexer_compress_ratio": 4},
    "two streams, larger n-grams": {"hc_count": 2, "ngram_size": 4, "ple_embed_dim": 48},
    "two tables": {"ple_layer_ids": [1, 3], "heads_per_ngram": 4},
    "no table": {"ple_layer_ids": []},
    "silu, not renormalised": {"output_gate_type": None, "norm_topk_prob": False},
    "several ends of sequence": {"eos_token_id": [5, 2]},
}


@cache
def plain():
    """The usual tiny model; nobody changes it."""
    return tiny_exp()


@cache
def plain_logits() -> torch.Tensor:
    return oracle_logits(plain(), IDS)


def error_of(runner: Runner, model, ids=IDS, chunks=None) -> float:
    wanted = plain_logits() if model is plain() and ids is IDS else oracle_logits(model, ids)
    return (runner.all_logits(ids, chunks) - wanted).abs().max().item()


@pytest.mark.parametrize("chunks", CHUNKINGS.values(), ids=CHUNKINGS.keys())
def test_logits_equal_transformers(ops, chunks, measured):
    model = plain()
    error = error_of(Runner(memory_source(model), ops), model, chunks=chunks)
    assert measured("qwen4_exp", "safetensors", ops.name, "transformers", error) <= 1e-4


@cache
def other(name: str):
    """A model with other numbers, and its logits."""
    model = tiny_exp(seed=1, **NUMBERS[name])
    return model, oracle_logits(model, IDS)


@pytest.mark.parametrize("name", NUMBERS)
def test_other_numbers_equal_transformers(ops, name):
    model, wanted = other(name)
    found = Runner(memory_source(model), ops).all_logits(IDS, [3, 30, 15])
    assert (found - wanted).abs().max() <= 1e-4


def test_attending_to_all_would_be_another_model():
    """The sparse choice matters here: with a budget for every token the logits are far from those of the small one."""
    model = plain()
    dense = Runner(memory_source(model, indexer_budget=64), ReferenceOps())
    assert error_of(dense, model) > 1e-2


def test_the_history_of_tokens_matters():
    model = plain()
    forgets = Runner(memory_source(model, eos_token_id=IDS[30]), ReferenceOps())
    assert error_of(forgets, model) > 1e-3


@pytest.mark.parametrize("ids", [[9], [5], [9, 11], [5, 9], [9, 5, 11]], ids=str)
def test_prompts_shorter_than_an_n_gram(ids):
    model = plain()
    runner = Runner(memory_source(model), ReferenceOps())
    runner.all_logits([3] * 10)  # the slot was used before
    assert error_of(runner, model, ids) <= 1e-4
    assert error_of(runner, model, ids, [1] * len(ids)) <= 1e-4


@pytest.mark.parametrize("storage", ["F32", "Q8_0"])
def test_a_row_has_the_same_bits_alone_among_others_and_in_any_chunk(ops, tmp_path, storage):
    runner = Runner(open_weights(write_exp(plain(), tmp_path / "m.gguf", storage)), ops, kv_type="f16")
    prompts = [IDS[: 5 + 9 * i] for i in range(3)]  # dense and sparse rows in one step
    assert_same_bits(runner, prompts)


def test_a_checkpoint_directory_and_a_gguf_file_are_the_same_model(tmp_path, measured):
    model = plain()
    write_exp(model, tmp_path / "m.gguf")
    directory = save_tiny(model, tmp_path / "d")
    assert any("shard_3" in name for name in open_weights(directory).tensors())
    from_gguf = Runner(open_weights(tmp_path / "m.gguf"), ReferenceOps())
    from_directory = Runner(open_weights(directory), ReferenceOps())
    assert not from_gguf.loaded.notices and not from_directory.loaded.notices
    assert (from_gguf.all_logits(IDS) - from_directory.all_logits(IDS)).abs().max() <= 1e-5
    assert measured("qwen4_exp", "GGUF", "reference", "transformers", error_of(from_gguf, model)) <= 1e-4


def test_the_table_stays_in_its_file(tmp_path):
    directory = save_tiny(plain(), tmp_path / "d")
    loaded = load_model(open_weights(directory), ReferenceOps(), mmap=False)
    sizes = (1009, 1013, 1019, 1021)  # of four hash functions; rows of 16 numbers
    assert make_sizes(1000, 4, 0) == sizes
    stored = sum(meta.nbytes for meta in open_weights(directory).tensors().values() if meta.type == "F32")
    assert loaded.packed_bytes + loaded.mapped_bytes == stored - 4064 * 16 * 4


def test_the_published_constants():
    """Those of Qwen3.8-Flash-Next: vocabulary 248320, seed 1234, sizes from 20 million on."""
    assert make_multipliers(248320, 3, 1234, 0) == (23703573157769, 20109073645365, 8052911324071)
    sizes = make_sizes(20_000_000, 16, 0)
    wanted = [3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171]
    assert sizes == tuple(20_000_000 + n for n in wanted)
    assert make_offsets(sizes)[:3] == (0, 20000003, 40000026)
    assert -(-sum(sizes) // 128) * 128 == 320_001_536


def test_a_second_table_takes_the_primes_after_those_of_the_first():
    assert make_sizes(1000, 4, 0) + make_sizes(1000, 4, 1) == make_sizes(1000, 8, 0)


def test_constants_of_the_checkpoint_count_more_than_made_ones():
    model = tiny_exp()
    tensors, config = dict(model.state_dict()), {**model.config.to_dict(), "architectures": ["Qwen4ExpForCausalLM"]}
    name = "model.layers.1.ple.ple_embedding.layer_multipliers"
    tensors[name] = tensors[name] + 2
    model.load_state_dict(tensors)
    assert error_of(Runner(MemorySource(tensors, config), ReferenceOps()), model) <= 1e-4
    without = {key: value for key, value in tensors.items() if "layer_multipliers" not in key}
    assert error_of(Runner(MemorySource(without, config), ReferenceOps()), model) > 1e-3


def test_constants_that_went_through_floats_are_refused(tmp_path):
    directory = save_tiny(plain(), tmp_path / "d")
    (path,) = Path(directory).glob("*.safetensors")
    from safetensors.torch import load_file

    tensors = load_file(path)
    name = "model.layers.1.ple.ple_embedding.layer_multipliers"
    save_file({**tensors, name: tensors[name].float()}, path, {"format": "pt"})
    with pytest.raises(CorruptFile, match="layer_multipliers is stored as F32, expected I64"):
        load_model(open_weights(directory), ReferenceOps())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"eos_token_id": None}, "eos_token_id is missing"),
        ({"indexer_budget": 9}, "9 tokens is not whole blocks of 2"),
        ({"hc_count": 1}, "hc_count is '1'"),
        ({"ple_embed_dim": 62}, "62 is no multiple of 4"),
        ({"num_experts": 0, "num_local_experts": 0}, "every layer .* has experts"),
    ],
    ids=str,
)
def test_numbers_that_cannot_be_are_refused(changes, text):
    source = memory_source(plain(), **changes)
    with pytest.raises(CorruptFile, match=text):
        find_model(source).configure(source)


def test_a_gguf_file_without_its_index_is_refused(tmp_path):
    from tests.support.tiny_exp import gguf_metadata, gguf_tensors
    from tests.support.tiny_gguf import write_gguf

    model = plain()
    metadata = {**gguf_metadata(model), "{a}.attention.compress_ratios": [0, 0, 0, 0]}
    write_gguf(tmp_path / "m.gguf", "qwen4exp", metadata, gguf_tensors(model))
    with pytest.raises(CorruptFile, match="compress_ratios"):
        load_model(open_weights(tmp_path / "m.gguf"), ReferenceOps())


def test_pages_must_be_whole_blocks():
    from strata_engine.memory.memory import Memory

    model = load_model(memory_source(plain()), ReferenceOps()).model
    with pytest.raises(UsageError, match="pages of 5 tokens"):
        Memory(model.memory(), 4, 5, "f32")


def test_the_config_is_read_from_what_transformers_writes(tmp_path):
    directory = save_tiny(plain(), tmp_path / "d")
    written = json.loads((Path(directory) / "config.json").read_text())
    assert written["layer_types"][3] == "indexed_attention"
    source = open_weights(directory)
    config = find_model(source).configure(source)
    assert config.delta is not None and config.delta.layers == frozenset({0, 1, 2})
    assert config.exp is not None and config.exp.sparse.dense_tokens == 9
