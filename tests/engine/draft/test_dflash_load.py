"""What a DFlash drafter's files must be: names, quantised matrices, and every misfit an error with both values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.models.dflash_config import read_dflash
from strata_kernels.reference.ops import ReferenceOps
from tests.support import packed_weights
from tests.support.dflash_case import Case, load, target
from tests.support.dflash_oracle import SECOND, VOCAB, config_json, random_tensors
from tests.support.quantised_tiny import coded
from tests.support.tiny_models import MemorySource


def open_with(tensors=None, of=None, given=None, **changes):
    config = config_json(**changes)
    return load(
        ReferenceOps(), config, random_tensors(config) if tensors is None else tensors, of or target(), **(given or {})
    )


def test_published_names_are_those_of_the_notes():
    names = set(random_tensors(config_json(layers=5)))
    assert len(names) == 58
    assert len(set(random_tensors(config_json(layers=5, own=SECOND)))) == 81


def guesses_of(changes=None, rename=None):
    case = Case(ReferenceOps(), changes or {})
    if rename is not None:
        case.net = load(case.ops, case.config, rename(case.tensors), case.target)
        case.drafter._net = case.net
        case.drafter.bind(case.drafter._room)
    return case.propose(case.ready("a", 20))


def fused(tensors):
    found = {
        name: value for name, value in tensors.items() if not name.endswith(tuple(f"{p}_proj.weight" for p in "qkv"))
    }
    for n in range(2):
        parts = [tensors[f"layers.{n}.self_attn.{part}_proj.weight"] for part in "qkv"]
        found[f"layers.{n}.self_attn.qkv_proj.weight"] = torch.cat(parts)
    return found


def aliased(tensors):
    names = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    return {names.get(name, name): value for name, value in tensors.items()}


@pytest.mark.parametrize(
    "rename",
    [lambda t: {f"model.{name}": value for name, value in t.items()}, fused, aliased],
    ids=["prefix", "fused", "alias"],
)
def test_other_spellings_of_the_names(rename):
    assert guesses_of(rename=rename) == guesses_of()


@pytest.mark.parametrize("prefix", ["", "model."])
def test_four_bit_matrices_mean_what_they_unpack_to(prefix):
    group = 32
    plain, packed = {}, {}
    for name, value in random_tensors(config_json()).items():
        if value.dim() != 2:
            plain[name] = packed[prefix + name] = value
            continue
        codes = coded(value.numpy(), 4, group)
        plain[name] = codes.values()
        for part, stored in packed_weights.packed(codes, False).items():
            packed[prefix + name.removesuffix("weight") + part] = stored
    weights = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": group}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    scheme = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    config = config_json()
    nets = [
        load(ReferenceOps(), config, plain, target()),
        load(ReferenceOps(), {**config, "quantization_config": scheme}, packed, target()),
    ]
    assert nets[1].fc.weight.type.startswith("I4")
    found = []
    for net in nets:
        case = Case(ReferenceOps())
        case.drafter._net = net
        case.drafter.bind(case.drafter._room)
        found.append(case.propose(case.ready("a", 20)))
        logits = case.ops.host(case.drafter._blocks._logits)[:5].copy()
    assert found[0][0].tokens == found[1][0].tokens and np.isfinite(logits).all()


@pytest.mark.parametrize(
    ("changes", "of", "error", "texts"),
    [
        ({"hidden_size": 32}, {}, UsageError, ("hidden_size is 32", "is 64")),
        ({"vocab_size": 90}, {}, UsageError, ("vocab_size is 90", "is 96")),
        ({"num_target_layers": 6}, {}, UsageError, ("num_target_layers is 6", "is 4")),
        ({"own": {"target_layer_ids": [0, 2, 4]}}, {}, UsageError, ("layer 4", "0 to 3")),
        ({"own": {"mask_token_id": 96}}, {}, UsageError, ("mask_token_id is 96", "96 rows")),
        ({"own": {"target_layer_ids": [0, 3]}}, {}, CorruptFile, ("fc.weight", "[64, 192]", "[64, 128]")),
        ({"own": {"target_layer_ids": [2, 0, 3]}}, {}, CorruptFile, ("ascending",)),
        ({"own": {"block_size": None}}, {}, CorruptFile, ("block_size is missing",)),
        ({"block_size": 16}, {}, CorruptFile, ("block_size is 16", "6")),
        ({"own": {"block_size": 1}}, {}, CorruptFile, ("guesses nothing",)),
        ({"own": {"runtime_block_size": 9}}, {}, UsageError, ("9 rows", "6 were trained")),
        ({"own": {"mask_token_id": None}}, {}, CorruptFile, ("mask_token_id is missing",)),
        ({"rope_theta": None}, {}, CorruptFile, ("rope_theta is missing",)),
        ({"head_dim": None}, {}, CorruptFile, ("head_dim is missing",)),
        ({"layer_types": ["full_attention"]}, {}, CorruptFile, ("layer_types",)),
        ({"layer_types": ["sliding_attention"] * 2}, {}, CorruptFile, ("sliding_window is missing",)),
        ({"hidden_act": "gelu"}, {}, UsageError, ("gelu",)),
        ({"own": {"attention_sink_bias": True}}, {}, UsageError, ("attention_sink_bias",)),
        ({"own": {"input_embedding_scale": 2.0}}, {}, UsageError, ("input_embedding_scale",)),
        ({"speculators_model_type": "dflash"}, {}, UsageError, ("speculators",)),
        ({"dflash_config": None}, {}, CorruptFile, ("not a DFlash drafter",)),
        ({"architectures": ["DFlash2DraftModel"]}, {}, CorruptFile, ("DFlash2",)),
        ({"own": {"selector_rank": 8}}, {}, CorruptFile, ("conv_kernel_size is missing",)),
        ({}, {"layers": 3}, UsageError, ("num_target_layers is 4", "is 3")),
    ],
)
def test_a_misfit_is_named(changes, of, error, texts):
    tensors = random_tensors(config_json())
    with pytest.raises(error) as caught:
        open_with(tensors, target(**of), **changes)
    for text in texts:
        assert text in str(caught.value), str(caught.value)


def test_version_two_weights_need_its_config():
    second = random_tensors(config_json(own=SECOND))
    with pytest.raises(UsageError, match="DFlash2"):
        open_with(second)


def test_tensors_are_all_there_and_no_others():
    tensors = random_tensors(config_json())
    with pytest.raises(CorruptFile, match=r"norm\.weight"):
        open_with({name: value for name, value in tensors.items() if name != "norm.weight"})
    with pytest.raises(CorruptFile, match=r"g_proj"):
        open_with({**tensors, "layers.0.self_attn.g_proj.weight": torch.ones(2, 2)})
    turned = {**tensors, "fc.weight": tensors["fc.weight"].T.contiguous()}
    with pytest.raises(CorruptFile, match=r"\[192, 64\], expected \[64, 192\]"):
        open_with(turned)


def test_the_layout_follows_the_config_then_the_heads():
    def layout(tensors=None, given=None, **changes):
        source = MemorySource(tensors or random_tensors(config_json()), config_json(**changes))
        config = read_dflash(source, from_anchor=given)
        return config.layout, config.drafts

    assert layout() == ("A", 5)
    assert layout(own={"sample_from_anchor": True}) == ("B", 6)
    assert layout(sample_from_anchor=True) == ("B", 6)
    assert layout(sample_from_anchor=False, own={"sample_from_anchor": True}) == ("A", 5)
    assert layout(given=False, own={"sample_from_anchor": True}) == ("A", 5)
    heads = {**random_tensors(config_json()), "markov_head.weight": torch.ones(2, 2)}
    assert layout(heads) == ("B", 6)
    assert layout(heads, own={"sample_from_anchor": False}) == ("A", 5)
    net = open_with(heads)
    assert "markov_head.weight" in net.notes[0]


def test_which_layers_slide_and_which_look_both_ways():
    def views(**changes):
        found = read_dflash(MemorySource({}, config_json(layers=3, **changes))).views
        return [(view.window, view.causal) for view in found]

    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert views() == [(0, False)] * 3
    assert views(sliding_window=64) == [(0, False)] * 3
    assert views(sliding_window=64, layer_types=kinds) == [(64, True), (0, False), (64, True)]
    assert views(sliding_window=64, layer_types=kinds, is_causal=False) == [(64, False), (0, False), (64, False)]
    assert views(sliding_window=64, layer_types=kinds, own={"causal": True}) == [(64, True), (0, True), (64, True)]
    assert views(is_causal=True, own={"causal": False}) == [(0, True)] * 3
    assert views(sliding_window=64, use_sliding_window=True, max_window_layers=2) == [
        (0, False),
        (0, False),
        (64, True),
    ]
    assert views(own={"use_swa": True, "swa_window_size": 32}) == [(32, True)] * 3


def test_usual_taps_where_none_are_named():
    config = config_json(layers=5, num_target_layers=36, own={"target_layer_ids": None})
    assert read_dflash(MemorySource({}, config)).taps == (1, 9, 17, 25, 33)
    assert read_dflash(MemorySource({}, {**config, "num_target_layers": 64})).taps == (1, 16, 31, 46, 61)


def test_rotation_is_over_the_whole_head_whatever_was_copied_along():
    copied = {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2]}
    config = read_dflash(MemorySource({}, config_json(rope_theta=None, rope_parameters=copied)))
    assert (config.rope.theta, config.rope.dims, config.rope.sections) == (1e7, 32, ())


def test_vocabulary_of_the_case():
    assert VOCAB == target().ends[1].rows
