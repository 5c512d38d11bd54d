"""The generator of random-weight models: files open, weights have the wanted spread, and the engine runs them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from benches.generate_model import MIXES, mix_of, write_model
from benches.model_shapes import PRESETS
from benches.random_blocks import TYPES, chunks
from strata_engine.formats.gguf_types import TYPES_BY_NAME
from strata_engine.formats.open import open_weights
from strata_kernels.reference.ops import ReferenceOps
from tests.support.forward import Runner
from tests.support.tiny_gguf import write_gguf

IN_PACKAGE = [name for name in TYPES if name in gguf.GGMLQuantizationType.__members__ and name != "Q1_0"]


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.gguf"
    write_gguf(path, "llama", {}, {"token_embd.weight": np.zeros((320, 4), np.float32)}, tokenizer=True)
    return path


def decoded(type_name: str, pieces: list[np.ndarray]) -> np.ndarray:
    stored = np.concatenate([piece.reshape(-1) for piece in pieces]).reshape(-1, TYPES_BY_NAME[type_name].nbytes)
    return gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[type_name])


@pytest.mark.parametrize("type_name", IN_PACKAGE)
def test_random_weights_have_the_wanted_spread(type_name):
    values = decoded(type_name, list(chunks(np.random.default_rng(0), type_name, 1 << 18, 0.02)))
    assert np.isfinite(values).all()
    share = 0.3 if type_name in ("MXFP4", "NVFP4") else 0.05  # their scales have few bits
    assert abs(values.std() / 0.02 - 1) < share
    assert abs(values.mean()) < 0.02 * 0.6


def test_large_tensors_come_in_pieces():
    sizes = [piece.nbytes for piece in chunks(np.random.default_rng(0), "Q8_0", 40 << 20, 0.02)]
    assert len(sizes) == 3
    assert max(sizes) <= 16 << 20
    assert sum(sizes) == (40 << 20) // 32 * 34


def test_part_blocks_are_refused(tmp_path, tokenizer_file):
    shape = replace(PRESETS["dense-tiny"], width=260)
    with pytest.raises(ValueError, match=r"token_embd\.weight: rows of 260"):
        write_model(tmp_path / "m.gguf", shape, mix_of("Q4_K"), tokenizer_file)


@pytest.mark.parametrize("preset", ["dense-tiny", "moe-tiny", "moe35-tiny"])
@pytest.mark.parametrize("quant", ["Q4_0", "Q4_K_M", "Q2_0"])
def test_files_hold_what_was_planned(tmp_path, tokenizer_file, preset, quant):
    shape, path = PRESETS[preset], tmp_path / "m.gguf"
    facts = write_model(path, shape, mix_of(quant), tokenizer_file)
    source = open_weights(path)
    found = source.metadata()
    assert found["general.architecture"] == shape.architecture
    assert found[f"{shape.architecture}.block_count"] == shape.layers
    assert len(found["tokenizer.ggml.tokens"]) == 320 == facts["vocabulary"]
    tensors = source.tensors()
    assert tensors["token_embd.weight"].shape == (320, shape.width)
    last = tensors[f"blk.{shape.layers - 1}.{'ffn_down_exps' if shape.experts else 'ffn_down'}.weight"]
    assert last.type == {"Q4_K_M": "Q6_K"}.get(quant, quant)
    assert last.nbytes == len(source.read(last.name))
    source.close()


def test_a_seed_gives_the_same_file_again(tmp_path, tokenizer_file):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_model(tmp_path / name, PRESETS["dense-tiny"], mix_of("IQ3_S"), tokenizer_file, seed)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()


@pytest.mark.parametrize("quant", ["Q4_0", *sorted(set(MIXES) - {"IQ3_S_MIX"})])
def test_the_engine_runs_a_dense_file(tmp_path, tokenizer_file, quant):
    path = tmp_path / "m.gguf"
    write_model(path, PRESETS["dense-tiny"], mix_of(quant), tokenizer_file)
    source = open_weights(path)
    logits = Runner(source, ReferenceOps(), context_tokens=32, sequences=1).all_logits([5, 6, 7])
    assert torch.isfinite(logits).all()
    assert 0.1 < logits.std() < 10
    source.close()
