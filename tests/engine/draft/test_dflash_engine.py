"""DFlash drafters in an engine: the answers are those of plain decoding, and the toy's own drafter pays."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import save_file

from strata_backends.cpu import CpuBackend
from strata_engine.config import SamplingParams, SpecConfig
from strata_engine.errors import UsageError
from tests.engine.draft.test_equality import prompts, run_all
from tests.support.dflash_oracle import SECOND, config_json, random_tensors
from tests.support.engines import GREEDY, tiny_engine

PARAMS = replace(GREEDY, max_tokens=12)
SAMPLED = SamplingParams(temperature=1.0, seed=5, max_tokens=12, ignore_eos=True)
SLIDING = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 12}


def save_drafter(directory: Path, **changes) -> Path:
    """A random drafter for the tiny qwen3 model."""
    own = {"target_layer_ids": [0, 1], "mask_token_id": 0, **changes.pop("own", {})}
    config = config_json(vocab_size=128, num_target_layers=2, own=own, **changes)
    directory.mkdir()
    save_file(random_tensors(config), directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def plain(checkpoints):
    with tiny_engine(checkpoints["qwen3"], CpuBackend(), max_sequences=8) as engine:
        return {params: run_all(engine, prompts(12), params) for params in (PARAMS, SAMPLED)}


@pytest.mark.parametrize(
    "changes",
    [{}, SLIDING, {"own": {"sample_from_anchor": True}}, {"own": SECOND}],
    ids=["full", "sliding", "from the anchor", "second version"],
)
def test_answers_are_those_of_plain_decoding(checkpoints, plain, tmp_path, changes):
    draft = save_drafter(tmp_path / "draft", **changes)
    spec = SpecConfig("dflash", str(draft), adaptive=False, strict=True)
    for sequences in (1, 4):
        with tiny_engine(
            checkpoints["qwen3"], CpuBackend(), max_sequences=sequences, batch_rows=32, spec=spec
        ) as engine:
            for params, wanted in plain.items():
                assert run_all(engine, prompts(12), params) == wanted
            engine.check()
            # random weights are never right, and the alarm says so; but nothing failed
            assert engine.parts.speculation.active
            assert {notice.code for notice in engine.parts.speculation.notices} <= {"spec_alarm"}


def test_a_drafter_of_another_model_is_refused(checkpoints, tmp_path):
    draft = save_drafter(tmp_path / "draft", hidden_size=32)
    spec = SpecConfig("dflash", str(draft), strict=True)
    with pytest.raises(UsageError, match="hidden_size is 32, the model's is 64"):
        tiny_engine(checkpoints["qwen3"], spec=spec)
    with tiny_engine(checkpoints["qwen3"], spec=replace(spec, strict=False)) as engine:
        [notice] = [n for n in engine.parts.notices if n.code == "spec_unavailable"]
        assert "hidden_size is 32" in notice.message


def test_auto_does_not_speak_of_kinds_that_the_directory_is_not(checkpoints, tmp_path):
    draft = save_drafter(tmp_path / "draft")
    with tiny_engine(checkpoints["qwen3"], CpuBackend(), spec=SpecConfig("auto", str(draft))) as engine:
        assert "dflash" in engine.report().speculation["drafters"]
        assert [n.message for n in engine.parts.notices if n.code == "spec_unavailable"] == []


def test_more_guesses_than_the_block_has_are_refused(checkpoints, tmp_path):
    draft = save_drafter(tmp_path / "draft")
    with pytest.raises(UsageError, match=r"--spec-n-max 6.*guesses 5 tokens"):
        tiny_engine(checkpoints["qwen3"], spec=SpecConfig("dflash", str(draft), n_max=6, strict=True))


def test_after_a_prefix_hit_the_guesses_are_those_of_a_fresh_read(checkpoints, tmp_path):
    spec = SpecConfig("dflash", str(save_drafter(tmp_path / "draft")), adaptive=False, strict=True)
    prompt, found = prompts(9)[8], []
    assert len(prompt) == 33  # four whole pages
    with tiny_engine(checkpoints["qwen3"], CpuBackend(), spec=spec) as engine:
        [drafter] = engine.parts.speculation._drafters.values()
        propose = drafter.propose

        def listened(asks):
            given = propose(asks)
            found.extend(
                (len(ask.sequence.tokens), ask.sequence.hold.shared, one.tokens)
                for ask, one in zip(asks, given, strict=True)
            )
            return given

        drafter.propose = listened
        first, second = (run_all(engine, [prompt]) for _ in range(2))
    assert first == second
    half = len(found) // 2
    assert {shared for _, shared, _ in found[:half]} == {0} and {shared for _, shared, _ in found[half:]} == {32}
    assert [(n, tokens) for n, _, tokens in found[:half]] == [(n, tokens) for n, _, tokens in found[half:]]
