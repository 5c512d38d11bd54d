"""Tiny hybrids of delta nets and attention: options for transformers, and their conversion to GGUF.

The conversion is written from the description of the formats, not from our own table of names, so that a wrong name or
order in the table is found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import transformers
from transformers.modeling_layers import MtpModel
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM

ROPE = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
SECTIONS = {"mrope_interleaved": True, "mrope_section": [2, 1, 1]}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
_DELTA = {**LINEAR, "tie_word_embeddings": False, "head_dim": 32, "num_hidden_layers": 4}
EXPERTS = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "qwen3_5": {**_DELTA, "rope_parameters": {**ROPE, **SECTIONS}},
    "qwen3_5_moe": {**_DELTA, **EXPERTS, "rope_parameters": {**ROPE, **SECTIONS}},
    "qwen3_next": {**_DELTA, **EXPERTS, "rope_parameters": dict(ROPE)},
}
CLASSES: dict[str, tuple[Any, Any]] = {
    "qwen3_5": (Qwen3_5TextConfig, Qwen3_5ForCausalLM),
    "qwen3_5_moe": (Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM),
    "qwen3_next": (transformers.Qwen3NextConfig, transformers.Qwen3NextForCausalLM),
}
ARCHITECTURES = {"qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe", "qwen3_next": "qwen3next"}

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.in_proj_qkvz.weight": "ssm_in.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
}


_DRAFT = {
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
}


def draft_head(model: transformers.PreTrainedModel, seed: int = 3) -> tuple[MtpModel, dict[str, torch.Tensor]]:
    """transformers' draft head for a model, and its tensors under the names of published checkpoints."""
    model.config.num_mtp_layers, model.config.mtp_layer_types = 1, ["full_attention"]
    head = MtpModel(model, 1).float().eval()
    generator = torch.Generator().manual_seed(seed)
    layer = head.layers[0]
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_((0.1 if parameter.dim() == 1 else 0.08) * noise)
    tops = {
        "eh_proj": "mtp.fc", "enorm": "mtp.pre_fc_norm_embedding", "hnorm": "mtp.pre_fc_norm_hidden",
        "post_norm": "mtp.norm", "mtp_block": "mtp.layers.0",
    }  # fmt: skip
    parts = ((name.partition("."), tensor) for name, tensor in layer.state_dict().items())
    return head, {f"{tops[top]}.{rest}": tensor for (top, _, rest), tensor in parts}


def gguf_tensors(
    model: transformers.PreTrainedModel,
    family: str,
    legacy: bool = False,
    draft: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, np.ndarray]:
    """Under GGUF names, with GGUF's values. `legacy`: Qwen3-Next's fused projection stays whole (ssm_in).

    `draft`: tensors of a draft head, which becomes one block more.
    """
    config = model.config
    found: dict[str, np.ndarray] = {}
    for name, tensor in {**model.state_dict(), **(draft or {})}.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value = tensor.detach().float().numpy()
        block = f"blk.{config.num_hidden_layers}."
        plain = name.replace("mtp.layers.0.", f"model.layers.{config.num_hidden_layers}.")
        layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", plain)
        if name in _DRAFT:
            stored = block + _DRAFT[name]
        else:
            stored = f"blk.{layer[1]}.{_LAYER[layer[2]]}" if layer else _TOP[name]
        value = _changed(name, value)
        if family != "qwen3_next":
            value = _tiled(name, value, config)
        found |= _pieces(stored, value, config, legacy)
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in found.items()}


def _changed(name: str, value: np.ndarray) -> np.ndarray:
    """Values that GGUF holds in another form."""
    if name.endswith("A_log"):
        return -np.exp(value)
    if name.endswith("conv1d.weight"):
        return value[:, 0]
    if name.endswith("shared_expert_gate.weight"):
        return value[0]
    if re.search(r"norm(_hidden|_embedding)?\.weight$", name) and not name.endswith("linear_attn.norm.weight"):
        return value + 1
    return value


def _tiled(name: str, value: np.ndarray, config: Any) -> np.ndarray:
    """Value heads in GGUF's order: head j of the file is head (j % Hk) * r + j // Hk of the checkpoint."""
    keys, heads, width = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim
    order = np.array([(j % keys) * (heads // keys) + j // keys for j in range(heads)])
    wide = (order[:, None] * width + np.arange(width)).ravel()
    if "linear_attn" not in name or name.endswith("norm.weight"):
        return value
    if name.endswith("out_proj.weight"):
        return value[:, wide]
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        plain = 2 * keys * config.linear_key_head_dim
        return np.concatenate([value[:plain], value[plain:][wide]])
    return value[wide] if name.endswith("in_proj_z.weight") else value[order]


def _pieces(stored: str, value: np.ndarray, config: Any, legacy: bool) -> dict[str, np.ndarray]:
    """Tensors that become two: gate and up of the experts, and the fused projection of Qwen3-Next in newer files."""
    if "gate_up_exps" in stored:
        gate, up = np.split(value, 2, axis=1)
        return {stored.replace("gate_up", "gate"): gate, stored.replace("gate_up", "up"): up}
    if stored.endswith("ssm_in.weight") and not legacy:
        keys, per = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
        k, v = config.linear_key_head_dim, per * config.linear_value_head_dim
        groups = value.reshape(keys, 2 * k + 2 * v, -1)
        cut: Callable[[int, int], np.ndarray] = lambda a, b: groups[:, a:b].reshape(keys * (b - a), -1)  # noqa: E731
        qkv = np.concatenate([cut(0, k), cut(k, 2 * k), cut(2 * k, 2 * k + v)])
        return {
            stored.replace("ssm_in", "attn_qkv"): qkv,
            stored.replace("ssm_in", "attn_gate"): cut(2 * k + v, 2 * k + 2 * v),
        }
    return {stored: value}


def gguf_metadata(config: Any) -> dict[str, Any]:
    """The hyper-parameter keys."""
    rope = config.rope_parameters
    found = {
        "{a}.block_count": config.num_hidden_layers,
        "{a}.context_length": config.max_position_embeddings,
        "{a}.embedding_length": config.hidden_size,
        "{a}.feed_forward_length": getattr(config, "intermediate_size", None),
        "{a}.attention.head_count": config.num_attention_heads,
        "{a}.attention.head_count_kv": config.num_key_value_heads,
        "{a}.attention.key_length": config.head_dim,
        "{a}.attention.value_length": config.head_dim,
        "{a}.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "{a}.rope.freq_base": float(rope["rope_theta"]),
        "{a}.rope.dimension_count": int(config.head_dim * rope["partial_rotary_factor"]),
        "{a}.full_attention_interval": 4,
        "{a}.ssm.conv_kernel": config.linear_conv_kernel_dim,
        "{a}.ssm.state_size": config.linear_key_head_dim,
        "{a}.ssm.group_count": config.linear_num_key_heads,
        "{a}.ssm.time_step_rank": config.linear_num_value_heads,
        "{a}.ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
    }
    if "mrope_section" in rope:
        found["{a}.rope.dimension_sections"] = [*rope["mrope_section"], 0]
    if getattr(config, "num_experts", 0):
        found |= {
            "{a}.expert_count": config.num_experts,
            "{a}.expert_used_count": config.num_experts_per_tok,
            "{a}.expert_feed_forward_length": config.moe_intermediate_size,
            "{a}.expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
        }
    return found
