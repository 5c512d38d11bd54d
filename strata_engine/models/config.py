"""ModelConfig: the numbers of a decoder, read from config.json or GGUF keys. No torch.

What differs between families (biases, q/k norms, rope pairing) is passed in as Traits by the family's module.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.formats.base import WeightSource
from strata_engine.models.delta_config import DeltaConfig, gguf_delta, hf_delta
from strata_engine.models.exp_config import ExpConfig
from strata_engine.models.fields import Fields
from strata_engine.models.mixture import MixtureConfig, gguf_mixture, hf_mixture

_SCALINGS = ("linear", "llama3", "yarn")


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched. `type`: none | linear | llama3 | yarn.

    `attention_factor` multiplies cos and sin (yarn); None = by the factor's own rule. `low`, `high`: frequency factors
    of llama3, or beta_slow, beta_fast of yarn. `mscale` (mscale, mscale_all_dim) as some yarn configs have them.
    """

    type: str = "none"
    factor: float = 1.0
    original_context_tokens: int = 0
    low: float = 1.0
    high: float = 1.0
    attention_factor: float | None = None
    mscale: tuple[float, float] | None = None
    truncate: bool = True


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: base, how many of a head's elements rotate, pairing (see ops.Rotary), scaling.

    `sections`: pairs that turn by time, height and width, interleaved (Qwen3-VL); empty where one position does it.
    """

    theta: float
    dims: int
    adjacent: bool = False
    scaling: RopeScaling = RopeScaling()
    sections: tuple[int, ...] = ()


@dataclass(frozen=True)
class Traits:
    """What a family has besides the plain decoder. For GGUF the biases follow from the tensors that are there."""

    qkv_bias: bool = False
    qk_norm: bool = False
    adjacent_gguf: bool = False  # GGUF stores q and k for adjacent-pair rope
    mixture: bool = False  # may have experts in place of the MLP
    renormalise: bool = False  # the weights of chosen experts sum to 1, unless the config says otherwise
    delta: bool = False  # some layers are gated delta nets
    tiled_gguf: bool = False  # GGUF orders their value heads by key head last (ops.DeltaRule.tiled)
    gated_attention: bool = False  # q comes with an output gate for each head
    partial_rotary: float = 1.0  # share of a head that rotates, unless the config says otherwise


@dataclass(frozen=True)
class ModelConfig:
    """A decoder. Widths in elements. `train_context_tokens`: positions the model was made for."""

    architecture: str
    vocab_size: int
    width: int
    inner_width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    norm_eps: float
    train_context_tokens: int
    tied: bool
    rope: RopeConfig
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    mixture: MixtureConfig | None = None
    delta: DeltaConfig | None = None
    gated_attention: bool = False
    exp: ExpConfig | None = None
    draft_layers: int = 0  # blocks in the checkpoint that predict further tokens (MTP); not among `layers`


def read_config(source: WeightSource, architecture: str, traits: Traits) -> ModelConfig:
    """The config of an open checkpoint. Raises CorruptFile (bad keys) or UsageError (what we do not support)."""
    where = str(source.paths[0]) if source.paths else source.kind
    if source.kind == "gguf":
        config = _from_gguf(source, Fields(source.metadata(), where), architecture, traits)
    else:
        config = _from_hf(Fields(source.metadata().get("config") or {}, where), architecture, traits)
        # configs name draft blocks that a checkpoint may lack, and the other way round
        drafts = any(name.startswith(("mtp.fc.", "mtp.fc_embedding.")) for name in source.tensors())
        config = replace(config, draft_layers=max(1, config.draft_layers) if drafts else 0)
    _check(config, where)
    return config


def _check(config: ModelConfig, where: str) -> None:
    if config.heads % config.kv_heads:
        raise CorruptFile(f"{where}: {config.heads} heads are not a multiple of {config.kv_heads} kv heads")
    sections = config.rope.sections
    if sections and (len(sections) != 3 or sum(sections) > config.rope.dims // 2):
        raise CorruptFile(f"{where}: rotary sections {list(sections)} do not fit {config.rope.dims // 2} pairs")
    if config.rope.dims % 2 or config.rope.dims > config.head_width:
        raise CorruptFile(f"{where}: rotary width {config.rope.dims} does not fit a head of {config.head_width}")


def _from_gguf(source: WeightSource, fields: Fields, architecture: str, traits: Traits) -> ModelConfig:
    prefix = fields.text("general.architecture")

    def key(name: str) -> str:
        return f"{prefix}.{name}"

    draft_layers = fields.integer(key("nextn_predict_layers"), 0, least=0)
    layers = fields.integer(key("block_count"), least=draft_layers + 1) - draft_layers
    mixture = gguf_mixture(source, fields, prefix, layers)
    if mixture and not traits.mixture:
        raise UsageError(f"{fields.where}: {prefix} with experts is not supported", hint="use a dense model")
    tensors = source.tensors()
    table = tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise CorruptFile(f"{fields.where}: tensor token_embd.weight is missing or not a matrix")
    heads, width = fields.integer(key("attention.head_count")), fields.integer(key("embedding_length"))
    head_width = fields.integer(key("attention.key_length"), max(1, width // heads))
    if fields.integer(key("attention.value_length"), head_width) != head_width:
        raise UsageError(f"{fields.where}: keys and values of different width are not supported")
    if fields.has(key("attention.sliding_window")) and fields.integer(key("attention.sliding_window"), least=0):
        raise UsageError(f"{fields.where}: sliding-window attention is not supported")
    return ModelConfig(
        architecture=architecture,
        vocab_size=table.shape[0],
        width=width,
        inner_width=fields.integer(key("feed_forward_length"), mixture.inner_width if mixture else None),
        layers=layers,
        heads=heads,
        kv_heads=fields.integer(key("attention.head_count_kv"), heads),
        head_width=head_width,
        norm_eps=fields.number(key("attention.layer_norm_rms_epsilon")),
        train_context_tokens=fields.integer(key("context_length")),
        tied="output.weight" not in tensors,
        rope=_gguf_rope(fields, prefix, head_width, traits.adjacent_gguf),
        qkv_bias=traits.qkv_bias or "blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        qk_norm=traits.qk_norm,
        mixture=mixture,
        delta=gguf_delta(fields, prefix, layers, traits.tiled_gguf) if traits.delta else None,
        gated_attention=traits.gated_attention,
        draft_layers=draft_layers,
    )


def _gguf_rope(fields: Fields, prefix: str, head_width: int, adjacent: bool) -> RopeConfig:
    def key(name: str) -> str:
        return f"{prefix}.rope.{name}"

    rope = RopeConfig(
        theta=fields.number(key("freq_base"), 10000.0),
        dims=fields.integer(key("dimension_count"), head_width),
        adjacent=adjacent,
        sections=fields.sequence(key("dimension_sections"))[:3],
    )
    kind = fields.text(key("scaling.type"), "none")
    if kind == "none" and fields.has(key("scale_linear")):  # the key of files from before scaling.type
        scaling = RopeScaling("linear", fields.number(key("scale_linear")))
        return replace(rope, scaling=scaling)
    if kind == "none":
        return rope
    if kind not in ("linear", "yarn"):
        raise UsageError(f"{fields.where}: rope scaling {kind!r} is not supported", hint="supported: linear, yarn")
    scaling = RopeScaling(kind, fields.number(key("scaling.factor")))
    if kind == "yarn":
        own = fields.number(key("scaling.attn_factor"), 1.0)
        attention = None if own == 1.0 else own * yarn_attention(scaling.factor)
        scaling = replace(
            scaling,
            original_context_tokens=fields.integer(key("scaling.original_context_length")),
            low=fields.number(key("scaling.yarn_beta_slow"), 1.0),
            high=fields.number(key("scaling.yarn_beta_fast"), 32.0),
            attention_factor=attention,
        )
    return replace(rope, scaling=scaling)


def _from_hf(fields: Fields, architecture: str, traits: Traits) -> ModelConfig:
    _refuse_hf(fields)
    heads, width = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    head_width = fields.integer("head_dim", max(1, width // heads))
    context_tokens = fields.integer("max_position_embeddings")
    own_bias = fields.flag("attention_bias", False)
    layers = fields.integer("num_hidden_layers")
    mixture = hf_mixture(fields, layers, traits.renormalise) if traits.mixture else None
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        width=width,
        inner_width=fields.integer("intermediate_size", mixture.inner_width if mixture else None),
        layers=layers,
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", heads),
        head_width=head_width,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        train_context_tokens=context_tokens,
        tied=fields.flag("tie_word_embeddings", False),
        rope=_hf_rope(fields, head_width, context_tokens, traits.partial_rotary),
        qkv_bias=traits.qkv_bias or own_bias,
        output_bias=own_bias,
        mlp_bias=fields.flag("mlp_bias", False),
        qk_norm=traits.qk_norm,
        mixture=mixture,
        delta=hf_delta(fields, layers) if traits.delta else None,
        gated_attention=traits.gated_attention,
        draft_layers=fields.integer("mtp_num_hidden_layers", 0, least=0),
    )


def _refuse_hf(fields: Fields) -> None:
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UsageError(f"{fields.where}: activation {activation!r} is not supported", hint="supported: silu")
    window = fields.has("sliding_window") and fields.flag("use_sliding_window", not fields.has("max_window_layers"))
    if window and fields.integer("sliding_window", least=0) not in (0, fields.integer("max_position_embeddings")):
        raise UsageError(f"{fields.where}: sliding-window attention is not supported")


def _hf_rope(fields: Fields, head_width: int, context_tokens: int, share: float) -> RopeConfig:
    """Both spellings: rope_parameters (transformers 5), and rope_theta beside rope_scaling."""
    new = fields.mapping("rope_parameters")
    scaled = new if fields.has("rope_parameters") else fields.mapping("rope_scaling")
    theta = new.number("rope_theta", fields.number("rope_theta", 10000.0))
    partial = new.number("partial_rotary_factor", fields.number("partial_rotary_factor", share))
    scaling = hf_scaling(scaled, context_tokens)
    sections = scaled.sequence("mrope_section")
    if sections and not scaled.flag("mrope_interleaved", False):
        raise UsageError(f"{fields.where}: rotary sections that are not interleaved are not supported")
    return RopeConfig(theta=theta, dims=int(head_width * partial), scaling=scaling, sections=sections)


def hf_scaling(fields: Fields, context_tokens: int) -> RopeScaling:
    """How a checkpoint stretches its frequencies. Raises CorruptFile, UsageError."""
    kind = fields.text("rope_type", fields.text("type", "default"))
    if kind == "default":
        return RopeScaling()
    if kind not in _SCALINGS:
        hint = f"supported: {', '.join(_SCALINGS)}"
        raise UsageError(f"{fields.where}: rope scaling {kind!r} is not supported", hint=hint)
    original = fields.integer("original_max_position_embeddings", context_tokens)
    if kind == "linear":
        return RopeScaling(kind, fields.number("factor"))
    if kind == "llama3":
        low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
        return RopeScaling(kind, fields.number("factor"), original, low, high)
    mscale = None
    if fields.has("mscale") and fields.has("mscale_all_dim"):
        mscale = (fields.number("mscale"), fields.number("mscale_all_dim"))
    return RopeScaling(
        kind,
        fields.number("factor", context_tokens / original),
        original,
        low=fields.number("beta_slow", 1.0),
        high=fields.number("beta_fast", 32.0),
        attention_factor=fields.number("attention_factor") if fields.has("attention_factor") else None,
        mscale=mscale,
        truncate=fields.flag("truncate", True),
    )


def yarn_attention(factor: float, weight: float = 1.0) -> float:
    """The factor on cos and sin of YaRN (arXiv 2309.00071, section 3.4) for a context stretched by `factor`."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def special_ids(metadata: Mapping[str, Any]) -> frozenset[int]:
    """End-of-sequence ids a checkpoint names itself, for models without a tokenizer."""
    found: set[int] = set()
    places = [metadata.get("config") or {}, metadata.get("generation_config") or {}]
    values = [place.get("eos_token_id") for place in places]
    values.append(metadata.get("tokenizer.ggml.eos_token_id"))
    for value in values:
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int) and not isinstance(one, bool):
                found.add(one)
    return frozenset(found)
