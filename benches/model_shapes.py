"""Shapes of real architectures for random-weight models: presets, their GGUF metadata, their tensors in file order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Experts:
    """A mixture: `count` experts of `width`, `used` a token; a shared one of `shared_width` when that is not 0."""

    count: int
    used: int
    width: int
    shared_width: int = 0


@dataclass(frozen=True)
class DeltaNet:
    """Gated delta net layers between full-attention layers: every `full_every`th layer has full attention."""

    full_every: int = 4
    key_heads: int = 16
    value_heads: int = 32
    head_width: int = 128
    convolution: int = 4


@dataclass(frozen=True)
class Shape:
    """A decoder of `layers` layers. `architecture`: GGUF name."""

    architecture: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    feed_forward: int = 0
    experts: Experts | None = None
    delta: DeltaNet | None = None


@dataclass(frozen=True)
class TensorPlan:
    """One tensor. `fill`: "matrix" (random, of the chosen type), "noise" (random F32), else the F32 constant's name.

    `role` is the tensor's name without layer and suffix; `layer` is -1 outside layers.
    """

    name: str
    shape: tuple[int, ...]
    fill: str
    role: str = ""
    layer: int = -1


PRESETS = {
    # Qwen3-4B: 24 of its 36 layers
    "dense-1.4g": Shape("qwen3", 2560, 24, 32, 8, 128, feed_forward=9728),
    # Qwen3-0.6B
    "dense-0.6b": Shape("qwen3", 1024, 28, 16, 8, 128, feed_forward=3072),
    # a small mixture: 3.4 thousand million weights, a tenth of them used by a token
    "moe-1.9g": Shape("qwen3moe", 1024, 16, 16, 4, 128, feed_forward=3072, experts=Experts(128, 8, 512)),
    # Qwen3-30B-A3B: 5 of its 48 layers
    "moe-a3b-5l": Shape("qwen3moe", 2048, 5, 32, 4, 128, feed_forward=6144, experts=Experts(128, 8, 768)),
    # Qwen3-30B-A3B whole, and Qwen3.5-35B-A3B: for weights that are made on a device
    "moe-a3b": Shape("qwen3moe", 2048, 48, 32, 4, 128, feed_forward=6144, experts=Experts(128, 8, 768)),
    "moe35-a3b": Shape("qwen35moe", 2048, 40, 16, 2, 256, experts=Experts(256, 8, 512, 512), delta=DeltaNet()),
    # Qwen3.5-35B-A3B: 8 of its 40 layers with 64 of their 256 experts
    "moe35-8l": Shape("qwen35moe", 2048, 8, 16, 2, 256, experts=Experts(64, 8, 512, 512), delta=DeltaNet()),
    # for tests of the programs that use these files
    "dense-tiny": Shape("qwen3", 256, 2, 4, 2, 64, feed_forward=512),
    "moe-tiny": Shape("qwen3moe", 256, 2, 4, 2, 64, feed_forward=512, experts=Experts(8, 2, 256)),
    "moe35-tiny": Shape("qwen35moe", 256, 4, 4, 2, 128, experts=Experts(8, 2, 256, 256), delta=DeltaNet(4, 2, 4)),
}


def metadata(shape: Shape) -> dict[str, Any]:
    """GGUF keys without the architecture's prefix, in file order."""
    keys: dict[str, Any] = {
        "context_length": 32768,
        "embedding_length": shape.width,
        "block_count": shape.layers,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_width,
        "attention.value_length": shape.head_width,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e6,
    }
    if shape.feed_forward:
        keys["feed_forward_length"] = shape.feed_forward
    if shape.experts:
        keys["expert_count"] = shape.experts.count
        keys["expert_used_count"] = shape.experts.used
        keys["expert_feed_forward_length"] = shape.experts.width
        if shape.experts.shared_width:
            keys["expert_shared_feed_forward_length"] = shape.experts.shared_width
    return keys | (_delta_metadata(shape.delta) if shape.delta else {})


def _delta_metadata(delta: DeltaNet) -> dict[str, Any]:
    return {
        "full_attention_interval": delta.full_every,
        "ssm.conv_kernel": delta.convolution,
        "ssm.state_size": delta.head_width,
        "ssm.group_count": delta.key_heads,
        "ssm.time_step_rank": delta.value_heads,
        "ssm.inner_size": delta.value_heads * delta.head_width,
        "rope.dimension_count": 64,
        "rope.dimension_sections": [11, 11, 10, 0],
    }


def tensors(shape: Shape, vocabulary: int) -> Iterator[TensorPlan]:
    """All tensors; the output head is tied to the embedding."""
    yield TensorPlan("token_embd.weight", (vocabulary, shape.width), "matrix", "token_embd")
    yield TensorPlan("output_norm.weight", (shape.width,), "one")
    for layer in range(shape.layers):
        for role, dims, fill in _layer(shape, layer):
            suffix = "" if role in ("ssm_a", "ssm_dt.bias") else ".weight"
            yield TensorPlan(f"blk.{layer}.{role}{suffix}", dims, fill, role, layer)


Part = tuple[str, tuple[int, ...], str]


def _layer(shape: Shape, layer: int) -> Iterator[Part]:
    yield "attn_norm", (shape.width,), "one"
    if shape.delta and (layer + 1) % shape.delta.full_every:
        yield from _delta_net(shape.width, shape.delta)
    else:
        yield from _attention(shape)
    yield "post_attention_norm" if shape.delta else "ffn_norm", (shape.width,), "one"
    if shape.experts:
        yield from _mixture(shape.width, shape.experts)
    else:
        yield from _gated(shape.width, shape.feed_forward, "")


def _attention(shape: Shape) -> Iterator[Part]:
    query, key = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    yield "attn_q", (query * (2 if shape.delta else 1), shape.width), "matrix"  # hybrids keep an output gate in it
    yield "attn_k", (key, shape.width), "matrix"
    yield "attn_v", (key, shape.width), "matrix"
    yield "attn_output", (shape.width, query), "matrix"
    yield "attn_q_norm", (shape.head_width,), "one"
    yield "attn_k_norm", (shape.head_width,), "one"


def _delta_net(width: int, delta: DeltaNet) -> Iterator[Part]:
    key, value = delta.key_heads * delta.head_width, delta.value_heads * delta.head_width
    yield "attn_qkv", (2 * key + value, width), "matrix"
    yield "attn_gate", (value, width), "matrix"
    yield "ssm_conv1d", (2 * key + value, delta.convolution), "noise"
    yield "ssm_dt.bias", (delta.value_heads,), "half"
    yield "ssm_a", (delta.value_heads,), "decay"
    yield "ssm_alpha", (delta.value_heads, width), "noise"
    yield "ssm_beta", (delta.value_heads, width), "noise"
    yield "ssm_norm", (delta.head_width,), "one"
    yield "ssm_out", (width, value), "matrix"


def _gated(width: int, inner: int, suffix: str) -> Iterator[Part]:
    yield f"ffn_gate{suffix}", (inner, width), "matrix"
    yield f"ffn_up{suffix}", (inner, width), "matrix"
    yield f"ffn_down{suffix}", (width, inner), "matrix"


def _mixture(width: int, experts: Experts) -> Iterator[Part]:
    yield "ffn_gate_inp", (experts.count, width), "noise"
    for role, dims, fill in _gated(width, experts.width, "_exps"):
        yield role, (experts.count, *dims), fill
    if experts.shared_width:
        yield "ffn_gate_inp_shexp", (width,), "noise"
        yield from _gated(width, experts.shared_width, "_shexp")
