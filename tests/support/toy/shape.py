"""The toy's shape and first values. Parameters live in one flat dict under their Hugging Face names (models.md 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

Parameters = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """A qwen3_5_moe of four layers: three gated delta nets, then attention. Widths are what the kernels like."""

    vocabulary: int = 1024
    width: int = 256
    layers: int = 4
    attention_every: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_width: int = 64
    rotary: int = 16
    theta: float = 10_000.0
    key_heads: int = 4
    value_heads: int = 8
    delta_width: int = 32  # of keys and of values
    kernel: int = 4
    experts: int = 16
    chosen: int = 4
    expert_width: int = 32
    shared_width: int = 128
    epsilon: float = 1e-6
    chunk: int = 32

    def attends(self, layer: int) -> bool:
        """Whether this layer is attention (else a gated delta net)."""
        return (layer + 1) % self.attention_every == 0

    @property
    def keys(self) -> int:
        return self.key_heads * self.delta_width

    @property
    def values(self) -> int:
        return self.value_heads * self.delta_width


def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
    """Normal values that keep the size of what goes in to 0.7 of it."""
    return torch.randn(rows, columns) * (0.7 * scale / math.sqrt(columns))


def make_trunk(shape: Shape) -> Parameters:
    """First values of the whole model without drafters."""
    values = {
        "model.embed_tokens.weight": torch.randn(shape.vocabulary, shape.width) * 0.3,
        "model.norm.weight": torch.zeros(shape.width),
        "lm_head.weight": matrix(shape.vocabulary, shape.width, 0.3),
    }
    for layer in range(shape.layers):
        values |= make_layer(shape, f"model.layers.{layer}.", shape.attends(layer), shape.layers)
    return values


def make_layer(shape: Shape, prefix: str, attends: bool, depth: int) -> Parameters:
    """One layer; what it adds to the residual starts smaller the deeper the model."""
    out = 1 / math.sqrt(2 * depth)
    mixer = _attention(shape, out) if attends else _delta_net(shape, out)
    values = {
        "input_layernorm.weight": torch.randn(shape.width) * 0.02,
        "post_attention_layernorm.weight": torch.randn(shape.width) * 0.02,
        **mixer,
        **_mixture(shape, out),
    }
    return {prefix + name: value for name, value in values.items()}


def _attention(shape: Shape, out: float) -> Parameters:
    queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    return {
        "self_attn.q_proj.weight": matrix(2 * queries, shape.width),
        "self_attn.k_proj.weight": matrix(keys, shape.width),
        "self_attn.v_proj.weight": matrix(keys, shape.width),
        "self_attn.o_proj.weight": matrix(shape.width, queries, out),
        "self_attn.q_norm.weight": torch.full((shape.head_width,), 0.2),
        "self_attn.k_norm.weight": torch.full((shape.head_width,), 0.2),
    }


def _delta_net(shape: Shape, out: float) -> Parameters:
    channels = 2 * shape.keys + shape.values
    # As Mamba draws them: time steps spread over two decades. The library's default forgets everything at once.
    spread = torch.linspace(math.log(1e-3), math.log(0.3), shape.value_heads)
    step = spread[torch.randperm(shape.value_heads)].exp()
    return {
        "linear_attn.in_proj_qkv.weight": matrix(channels, shape.width),
        "linear_attn.in_proj_z.weight": matrix(shape.values, shape.width),
        "linear_attn.in_proj_b.weight": matrix(shape.value_heads, shape.width),
        "linear_attn.in_proj_a.weight": matrix(shape.value_heads, shape.width, 0.3),
        "linear_attn.conv1d.weight": torch.randn(channels, 1, shape.kernel) * 0.3,
        "linear_attn.dt_bias": step + torch.log(-torch.expm1(-step)),  # softplus of it is `step`
        "linear_attn.A_log": torch.linspace(1, 4, shape.value_heads).log(),
        "linear_attn.norm.weight": torch.ones(shape.delta_width),
        "linear_attn.out_proj.weight": matrix(shape.width, shape.values, out),
    }


def _mixture(shape: Shape, out: float) -> Parameters:
    experts, inner = shape.experts, shape.expert_width
    return {
        "mlp.gate.weight": matrix(experts, shape.width, 0.5),
        "mlp.experts.gate_up_proj": torch.randn(experts, 2 * inner, shape.width) * (0.7 / math.sqrt(shape.width)),
        "mlp.experts.down_proj": torch.randn(experts, shape.width, inner) * (0.7 * out / math.sqrt(inner)),
        "mlp.shared_expert.gate_proj.weight": matrix(shape.shared_width, shape.width),
        "mlp.shared_expert.up_proj.weight": matrix(shape.shared_width, shape.width),
        "mlp.shared_expert.down_proj.weight": matrix(shape.width, shape.shared_width, out),
        "mlp.shared_expert_gate.weight": matrix(1, shape.width),
    }
