"""EAGLE-3 drafters: every draft of a chain against an oracle, the same drafts whatever happened before, refusals."""

from __future__ import annotations

import functools
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from strata_backends.cpu import CpuBackend
from strata_engine.config import SamplingParams, SpecConfig
from strata_engine.draft.eagle3 import EagleDrafter
from strata_engine.errors import CorruptFile, NotFound, UsageError
from strata_engine.models.eagle3 import load_eagle3
from strata_engine.models.eagle3_config import read_eagle3
from strata_engine.models.load import load_model
from strata_kernels.native import NativeOps
from strata_kernels.reference.ops import ReferenceOps
from tests.engine.draft.test_equality import prompts, run_all
from tests.support.drafting import PAGE, Stage
from tests.support.eagle_oracle import LAYERS, SMALL, TAPS, VOCAB, Oracle, config_json, random_tensors
from tests.support.engines import GREEDY, tiny_engine
from tests.support.tiny_models import MemorySource, memory_source, save_tiny, tiny_model

DEPTH = 4
GREEDILY = replace(GREEDY, max_tokens=10)
SEEDED = SamplingParams(temperature=1.2, seed=5, max_tokens=10, ignore_eos=True)
IDS = "eagle_aux_hidden_state_layer_ids"


class Case:
    """A tiny target of four layers with a random drafter."""

    def __init__(self, family: str, embedding: bool = True, **changes) -> None:
        self.target = tiny_model(family, num_hidden_layers=LAYERS)
        self.source = memory_source(self.target)
        self.tensors = random_tensors(embedding=embedding)
        self.config = config_json(**changes)
        table = self.target.state_dict()["model.embed_tokens.weight"]
        self.oracle = Oracle(self.tensors, table, norm_output=changes.get("norm_output", False))

    def stage(self, ops, rows: int = 16, p_min: float = 0.0) -> Stage:
        model = load_model(self.source, ops).model
        source = MemorySource(self.tensors, self.config)
        net = load_eagle3(source, read_eagle3(source, model.config), model, ops)
        return Stage(model, EagleDrafter(net, DEPTH, p_min), ops, rows=rows)

    def wanted(self, tokens: list[int]) -> tuple[list[int], torch.Tensor]:
        with torch.no_grad():
            states = self.target.model(torch.tensor([tokens[:-1]]), output_hidden_states=True).hidden_states
            taps = torch.cat([states[layer + 1][0] for layer in TAPS], -1)
            return self.oracle.drafts(tokens, taps, DEPTH)


def ids(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=count)


def read(stage: Stage, tokens: list[int], chunk: int = 16):
    sequence = stage.start("one", tokens[:-1])
    stage.read(sequence, tokens[-1], chunk)
    return sequence


@pytest.fixture(scope="module")
def case() -> Case:
    return Case("llama")


KINDS = {
    "own embedding": ("llama", {}),
    "the target's embedding": ("llama", {"embedding": False}),
    "normed state goes on": ("llama", {"norm_output": True}),
    "mixture": ("qwen3_moe", {}),
}


@pytest.mark.parametrize(("kind", "name"), [*((kind, "native") for kind in KINDS), ("own embedding", "reference")])
def test_every_draft_of_the_chain_equals_the_oracle(kind, name):
    family, changes = KINDS[kind]
    case, ops = Case(family, **changes), NativeOps(1) if name == "native" else ReferenceOps()
    for length in (2, PAGE + 1, 21)[: 3 if name == "native" else 2]:
        stage, tokens = case.stage(ops), ids(length, seed=length)
        sequence = read(stage, tokens)
        wanted, logits = case.wanted(tokens)
        gap = logits.topk(2).values.diff().abs().min()
        assert gap > 1e-3, "the case is a tie; draw another"
        for depth in range(1, DEPTH + 1):
            [found] = stage.propose(depth, sequence)
            last = torch.from_numpy(ops.host(stage.drafter._chain._logits)[0].copy())
            assert (last - logits[depth - 1]).abs().max() <= 1e-4
            assert list(found.tokens) == wanted[:depth]
        assert np.allclose(found.confidence, logits.softmax(-1).amax(-1), atol=1e-4)


def test_drafts_are_tokens_of_the_target(case):
    """Ids go through d2t, in the chain as in the proposal: without it the second draft would differ."""
    stage, tokens = case.stage(NativeOps(1)), ids(12)
    [found] = stage.propose(DEPTH, read(stage, tokens))
    known = {own + int(offset) for own, offset in enumerate(case.tensors["d2t"])}
    assert set(found.tokens) <= known and len(known) == SMALL
    assert {int(token) for token in case.tensors["t2d"].nonzero()} == known
    stage = case.stage(NativeOps(1))
    net = stage.drafter._net
    object.__setattr__(net, "ids", None)  # the control: the chain takes the drafter's own ids
    [other] = stage.propose(DEPTH, read(stage, tokens))
    assert other.tokens[0] == found.tokens[0] and other.confidence[1:] != found.confidence[1:]


@pytest.mark.parametrize("seed", range(4))
def test_drafts_after_partial_acceptance_are_those_of_a_fresh_drafter(case, seed):
    """Bit-equal after rounds that keep any number of rows, with drafts of any depth between them."""
    ops, tokens, draw = NativeOps(1), ids(50, seed), random.Random(seed)
    stage, at = case.stage(ops), 18
    sequence = read(stage, tokens[:at], chunk=draw.choice([3, 7, 16]))
    while at < len(tokens):
        if draw.random() < 0.8:
            stage.propose(draw.randint(1, DEPTH), sequence)
        kept = tokens[at : at + draw.randint(1, DEPTH + 1)]
        stage.advance((sequence, kept))
        at += len(kept)
    fresh = case.stage(ops, rows=64)
    other = read(fresh, tokens, chunk=64)
    assert stage.propose(DEPTH, sequence) == fresh.propose(DEPTH, other)
    assert sequence.hold.drafted["eagle3"] == other.hold.drafted["eagle3"] == len(tokens) - 1


def test_sequences_of_a_batch_are_drafted_as_if_alone(case):
    ops = NativeOps(1)
    together, alone = case.stage(ops, rows=32), case.stage(ops, rows=32)
    pairs = []
    for number, length in enumerate((5, 9, 30)):
        tokens = ids(length, number)
        both = [stage.start(str(number), tokens[:-1]) for stage in (together, alone)]
        for stage, sequence in zip((together, alone), both, strict=True):
            stage.read(sequence, tokens[-1])
        pairs.append(both)
    found = together.propose(3, *(first for first, _ in pairs))
    assert found == [alone.propose(3, second)[0] for _, second in pairs]


def test_a_chain_ends_where_the_drafter_is_not_sure(case):
    stage, tokens = case.stage(NativeOps(1)), ids(12)
    [full] = stage.propose(DEPTH, read(stage, tokens))
    limit = sorted(full.confidence)[1]
    strict = case.stage(NativeOps(1), p_min=limit)
    [found] = strict.propose(DEPTH, read(strict, tokens))
    first = next(n for n, share in enumerate(full.confidence) if share < limit)
    assert found.tokens == full.tokens[:first]


def save_drafter(directory: Path, tensors: dict[str, torch.Tensor], **changes) -> Path:
    directory.mkdir()
    save_file({name: value.contiguous() for name, value in tensors.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config_json(**changes)))
    return directory


def repeating(target) -> dict[str, torch.Tensor]:
    """A drafter that reads the target's own head off its third tap: right wherever the target repeats itself."""
    state, tensors = target.state_dict(), random_tensors(embedding=False)
    for name in ("d2t", "t2d", "lm_head.weight"):
        del tensors[name]
    for name in ("midlayer.self_attn.o_proj.weight", "midlayer.mlp.down_proj.weight"):
        tensors[name] = torch.zeros_like(tensors[name])
    tensors["fc.weight"] = torch.cat([torch.zeros(64, 128), torch.eye(64)], 1)
    tensors["norm.weight"] = state["model.norm.weight"]
    return tensors


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_answers_are_those_of_plain_decoding(tmp_path, family):
    target = tiny_model(family, num_hidden_layers=LAYERS)
    path, asked = save_tiny(target, tmp_path / family), prompts(5)
    with tiny_engine(path, CpuBackend(), threads=1) as engine:
        plain = {params: run_all(engine, asked, params) for params in (GREEDILY, SEEDED)}
    own = {IDS: [1, 2, 3]}
    drafters = {
        "small": save_drafter(tmp_path / "small", random_tensors()),
        "repeating": save_drafter(tmp_path / "whole", repeating(target), draft_vocab_size=None, eagle_config=own),
    }
    for name, sequences in (("small", 4), ("repeating", 1), ("repeating", 4)):
        spec = SpecConfig("eagle3", str(drafters[name]), n_max=3, adaptive=False, strict=True)
        with tiny_engine(path, CpuBackend(), max_sequences=sequences, threads=1, spec=spec) as engine:
            for params, wanted in plain.items():
                assert run_all(engine, asked, params) == wanted
            engine.check()
            assert engine.parts.speculation.active
            counts = engine.parts.speculation.report()["counts"]
        assert counts["drafted"] > 0
        assert name == "small" or 0 < counts["accepted"] < counts["drafted"]


@functools.cache
def model_of(layers: int):
    return load_model(memory_source(tiny_model("llama", num_hidden_layers=layers)), ReferenceOps()).model


def opened(tensors=None, layers: int = LAYERS, **changes):
    source = MemorySource(random_tensors() if tensors is None else tensors, config_json(**changes))
    model = model_of(layers)
    return load_eagle3(source, read_eagle3(source, model.config), model, ReferenceOps())


def without(*names: str) -> dict[str, torch.Tensor]:
    return {name: value for name, value in random_tensors().items() if name not in names}


def test_layers_are_counted_by_what_leaves_them():
    """Usual: what enters layers 2, L // 2 and L - 3, which is what leaves those before; ids in a config are ours."""
    [plain] = {tuple(opened(layers=8, eagle_config=None).config.taps)}
    assert plain == (1, 3, 4)
    assert opened(layers=8, eagle_config=None, **{IDS: [0, 5, 7]}).config.taps == (0, 5, 7)
    config = replace(model_of(LAYERS).config, layers=94)
    assert read_eagle3(MemorySource({}, config_json(eagle_config=None)), config).taps == (1, 46, 90)


def test_other_spellings_of_the_names():
    plain = random_tensors()
    wanted = opened(plain).packed_bytes
    for prefix, layer in (("model.", "midlayer."), ("", "layers.0."), ("model.", "layers.0.")):
        assert opened({prefix + n.replace("midlayer.", layer): t for n, t in plain.items()}).packed_bytes == wanted


@pytest.mark.parametrize(
    ("changes", "error", "texts"),
    [
        ({"hidden_size": 32}, UsageError, ("hidden_size is 32", "is 64")),
        ({"target_hidden_size": 96}, UsageError, ("target_hidden_size is 96", "is 64")),
        ({"vocab_size": 90}, UsageError, ("vocab_size is 90", "is 128")),
        ({"draft_vocab_size": 200}, CorruptFile, ("draft_vocab_size is 200", "128")),
        ({"draft_vocab_size": 50}, CorruptFile, ("lm_head.weight", "[40, 64]", "[50, 64]")),
        ({"eagle_config": {IDS: [0, 2, 4]}}, UsageError, ("layer 4", "0 to 3")),
        ({"eagle_config": {IDS: [0, 2]}}, CorruptFile, ("[0, 2]", "3 layers")),
        ({"eagle_config": {IDS: [2, 0, 1]}}, CorruptFile, ("[2, 0, 1]", "ascending")),
        ({IDS: [0, 1, 3]}, CorruptFile, ("[0, 1, 3]", "[0, 1, 2]")),
        ({"eagle_config": None}, UsageError, ("a model of 7", "has 4")),
        ({"eagle_config": {"use_aux_hidden_state": False}}, UsageError, ("use_aux_hidden_state is False",)),
        ({"num_hidden_layers": 2}, UsageError, ("num_hidden_layers is 2", "only 1")),
        ({"norm_before_residual": True}, UsageError, ("norm_before_residual is True",)),
        ({"hidden_act": "gelu"}, UsageError, ("gelu",)),
        ({"speculators_model_type": "eagle3"}, UsageError, ("speculators",)),
        ({"rms_norm_eps": None}, CorruptFile, ("rms_norm_eps is missing",)),
    ],
)
def test_a_misfit_is_named(changes, error, texts):
    with pytest.raises(error) as caught:
        opened(**changes)
    for text in texts:
        assert text in str(caught.value), str(caught.value)


OFFSETS = random_tensors()["d2t"]


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        (without("norm.weight", "fc.weight"), r"2 tensors are missing: fc\.weight, norm\.weight"),
        ({**random_tensors(), "midlayer.self_attn.q_norm.weight": torch.ones(32)}, "not known.*q_norm"),
        ({**random_tensors(), "fc.weight": torch.ones(192, 64)}, r"\[192, 64\], expected \[64, 192\]"),
        (without("d2t"), "d2t is missing, and draft_vocab_size 40 is not vocab_size 128"),
        ({**random_tensors(), "d2t": OFFSETS[:9]}, r"d2t is I64 \[9\], expected whole numbers \[40\]"),
        ({**random_tensors(), "d2t": OFFSETS + 100}, "d2t leads to tokens .* the model has 0 to 127"),
        ({**random_tensors(), "d2t": -torch.arange(SMALL)}, "several of 40 ids the same token"),
        ({**random_tensors(), "t2d": torch.ones(VOCAB, dtype=torch.bool)}, "t2d marks 128 tokens, 40 of the 40"),
    ],
)
def test_tensors_are_all_there_and_agree(tensors, text):
    with pytest.raises(CorruptFile, match=text):
        opened(tensors)


def test_what_is_no_eagle3_drafter_is_said_to_be_none():
    with pytest.raises(NotFound, match=r"not an EAGLE-3 drafter.*LlamaForCausalLM"):
        read_eagle3(memory_source(tiny_model("llama")), model_of(LAYERS).config)


def test_the_whole_vocabulary_needs_no_offsets():
    net = opened(without("d2t", "t2d", "lm_head.weight", "embed_tokens.weight"), draft_vocab_size=None)
    assert net.targets is None and net.head.rows == VOCAB and net.shared == ("embedding", "head")
    with pytest.raises(UsageError, match="own embedding again"):
        opened(without("d2t", "t2d", "lm_head.weight"), draft_vocab_size=None, tie_word_embeddings=True)
