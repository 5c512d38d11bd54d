"""Models that see, against transformers: images in the middle, several, any chunking, decoding after them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from strata_engine.errors import CorruptFile
from strata_engine.formats.open import open_weights
from strata_engine.formats.projector import with_projector
from strata_kernels.reference.ops import ReferenceOps
from tests.support.forward import Runner
from tests.support.op_makers import native_makers
from tests.support.tiny_vision import oracle, seen_prompt, source_of, tiny_vl, tiny_vl_35, write_vl_gguf

ONE = ([7, 8], (2, 3), [9, 10, 11])
TWO = ([7], (1, 2), [9], (3, 2), [11, 12, 13])
CHUNKINGS = {"at once": None, "across an image": [1, 4, 3, 5, 100], "single tokens": [1] * 40}


def native_ops():
    *_, maker = [m for m in native_makers() if not m.name.endswith("-8")]  # the fastest, 16-bit activations
    if maker.absent:
        pytest.skip(maker.absent)
    return maker.make(2)


@pytest.mark.parametrize(("deepstack", "pieces", "chunks"), [
    ((0, 1), TWO, "at once"), ((2, 0), TWO, "across an image"), ((), TWO, "single tokens"),
    ((0, 1), ONE, "across an image"), ((2, 0), ONE, "single tokens"), ((), ONE, "at once"),
])  # fmt: skip
def test_logits_equal_transformers(deepstack, pieces, chunks, measured):
    model = tiny_vl(deepstack)
    ids, pictures = seen_prompt(*pieces)
    prompt, ids = len(ids), [*ids, 14, 15, 16, 17]
    runner = Runner(source_of(model), ReferenceOps())
    got = runner.all_logits(ids, CHUNKINGS[chunks], runner.see(pictures))
    error = (got - oracle(model, ids, pictures, prompt)).abs().max().item()
    assert measured("qwen3_vl", "safetensors", "reference", "transformers", error) <= 1e-4


def test_native_logits_equal_transformers(measured):
    model = tiny_vl()
    ids, pictures = seen_prompt(*TWO)
    prompt, ids = len(ids), [*ids, 14, 15, 16]
    runner = Runner(source_of(model), native_ops())
    seen = runner.see(pictures)
    got = runner.all_logits(ids, None, seen)
    error = (got - oracle(model, ids, pictures, prompt)).abs().max().item()
    assert measured("qwen3_vl", "safetensors", "native", "transformers", error) <= 1e-3
    assert torch.equal(got, runner.all_logits(ids, [2, 5, 4, 30], seen))


def test_text_alone_needs_no_images():
    model = tiny_vl()
    ids = [7, 8, 9, 10, 11, 12]
    got = Runner(source_of(model), ReferenceOps()).all_logits(ids, [4, 2])
    with torch.no_grad():
        assert (got - model(torch.tensor([ids])).logits[0]).abs().max().item() <= 1e-4


def test_another_image_gives_other_logits():
    model = tiny_vl()
    runner = Runner(source_of(model), ReferenceOps())
    (ids, first), (_, second) = seen_prompt(*ONE), seen_prompt(*ONE, seed=1)
    logits = [runner.all_logits(ids, None, runner.see(pictures))[-1] for pictures in (first, second)]
    assert (logits[0] - logits[1]).abs().max() > 0.01
    assert first.keys != second.keys


def test_positions_of_the_published_example():
    """models.md 3.6: 2 x 3 tokens after three of text."""
    _, pictures = seen_prompt(*ONE)
    for image in pictures.images:
        image.features = np.zeros((6, 1), np.float32)
    placed = pictures.sight(0, 14, 1).axes
    assert placed[0].tolist() == [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7, 8, 9, 10]
    assert placed[1, 3:9].tolist() == [3, 3, 3, 4, 4, 4]
    assert placed[2, 3:9].tolist() == [3, 4, 5, 3, 4, 5]
    assert pictures.delta == -3


@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
def test_hybrids_see_as_transformers_does(experts, measured):
    model = tiny_vl_35(experts)
    ids, pictures = seen_prompt(*TWO)
    prompt, ids = len(ids), [*ids, 14, 15, 16]
    runner = Runner(source_of(model), ReferenceOps())
    wanted = oracle(model, ids, pictures, prompt)
    for chunks in (None, [2, 5, 4, 30]):
        got = runner.all_logits(ids, chunks, runner.see(pictures))
        error = (got - wanted).abs().max().item()
        family = "qwen3_5_moe" if experts else "qwen3_5"
        assert measured(f"{family} sees", "safetensors", "reference", "transformers", error) <= 1e-3


def test_a_projector_file_gives_the_same_logits(tmp_path):
    model = tiny_vl()
    ids, pictures = seen_prompt(*TWO)
    decoder, projector = write_vl_gguf(model, tmp_path)
    source = with_projector(open_weights(decoder), open_weights(projector))
    from_files, in_memory = Runner(source, ReferenceOps()), Runner(source_of(model), ReferenceOps())
    assert from_files.loaded.notices == ()
    first, second = (r.all_logits(ids, None, r.see(pictures)) for r in (from_files, in_memory))
    assert (first - second).abs().max() <= 1e-5


@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
def test_hybrids_see_the_same_from_two_files(tmp_path, experts, measured):
    """Decoder (value heads tiled, norms with their 1) and projector, both written after the notes."""
    model = tiny_vl_35(experts)
    ids, pictures = seen_prompt(*TWO)
    prompt, ids = len(ids), [*ids, 14, 15, 16]
    source = with_projector(*map(open_weights, write_vl_gguf(model, tmp_path)))
    from_files, in_memory = Runner(source, ReferenceOps()), Runner(source_of(model), ReferenceOps())
    assert from_files.loaded.notices == ()
    first, second = (r.all_logits(ids, [2, 5, 4, 30], r.see(pictures)) for r in (from_files, in_memory))
    assert (first - second).abs().max() <= 1e-4
    error = (first - oracle(model, ids, pictures, prompt)).abs().max().item()
    family = "qwen3_5_moe" if experts else "qwen3_5"
    assert measured(f"{family} sees", "gguf + mmproj", "reference", "transformers", error) <= 1e-3


def test_a_decoder_file_alone_is_a_text_model(tmp_path):
    decoder, _ = write_vl_gguf(tiny_vl(), tmp_path)
    assert Runner(open_weights(decoder), ReferenceOps()).loaded.tower is None


def test_the_projector_of_another_model_is_refused(tmp_path):
    decoder, _ = write_vl_gguf(tiny_vl(hidden_size=64), tmp_path)
    (tmp_path / "other").mkdir()
    _, projector = write_vl_gguf(tiny_vl(), tmp_path / "other", out_width=32)
    with pytest.raises(CorruptFile, match="width of 32"):
        Runner(with_projector(open_weights(decoder), open_weights(projector)), ReferenceOps())
