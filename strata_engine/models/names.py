"""Our tensor names and how GGUF files and Hugging Face checkpoints spell them. No torch.

`{n}` is the layer. A tensor that we know but do not need is listed in NOT_NEEDED with the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# ours: (GGUF, Hugging Face)
NAMES: dict[str, tuple[str, str]] = {
    "embed": ("token_embd.weight", "model.embed_tokens.weight"),
    "norm": ("output_norm.weight", "model.norm.weight"),
    "head": ("output.weight", "lm_head.weight"),
    "rope_factors": ("rope_freqs.weight", ""),
    "{n}.norm1": ("blk.{n}.attn_norm.weight", "model.layers.{n}.input_layernorm.weight"),
    "{n}.q": ("blk.{n}.attn_q.weight", "model.layers.{n}.self_attn.q_proj.weight"),
    "{n}.k": ("blk.{n}.attn_k.weight", "model.layers.{n}.self_attn.k_proj.weight"),
    "{n}.v": ("blk.{n}.attn_v.weight", "model.layers.{n}.self_attn.v_proj.weight"),
    "{n}.o": ("blk.{n}.attn_output.weight", "model.layers.{n}.self_attn.o_proj.weight"),
    "{n}.q_bias": ("blk.{n}.attn_q.bias", "model.layers.{n}.self_attn.q_proj.bias"),
    "{n}.k_bias": ("blk.{n}.attn_k.bias", "model.layers.{n}.self_attn.k_proj.bias"),
    "{n}.v_bias": ("blk.{n}.attn_v.bias", "model.layers.{n}.self_attn.v_proj.bias"),
    "{n}.o_bias": ("blk.{n}.attn_output.bias", "model.layers.{n}.self_attn.o_proj.bias"),
    "{n}.q_norm": ("blk.{n}.attn_q_norm.weight", "model.layers.{n}.self_attn.q_norm.weight"),
    "{n}.k_norm": ("blk.{n}.attn_k_norm.weight", "model.layers.{n}.self_attn.k_norm.weight"),
    "{n}.norm2": ("blk.{n}.ffn_norm.weight", "model.layers.{n}.post_attention_layernorm.weight"),
    "{n}.gate": ("blk.{n}.ffn_gate.weight", "model.layers.{n}.mlp.gate_proj.weight"),
    "{n}.up": ("blk.{n}.ffn_up.weight", "model.layers.{n}.mlp.up_proj.weight"),
    "{n}.down": ("blk.{n}.ffn_down.weight", "model.layers.{n}.mlp.down_proj.weight"),
    "{n}.gate_bias": ("blk.{n}.ffn_gate.bias", "model.layers.{n}.mlp.gate_proj.bias"),
    "{n}.up_bias": ("blk.{n}.ffn_up.bias", "model.layers.{n}.mlp.up_proj.bias"),
    "{n}.down_bias": ("blk.{n}.ffn_down.bias", "model.layers.{n}.mlp.down_proj.bias"),
}

# computed from the config instead; old checkpoints store it
NOT_NEEDED = re.compile(r"(.*\.)?rotary_emb\.inv_freq|blk\.\d+\.attn_rot_embd")


@dataclass(frozen=True)
class Wanted:
    """A tensor that a model needs. `name` is ours; `shape` rows first.

    `use`: matrix (multiplied, may be packed) | table (rows are looked up) | vector (small, becomes f32).
    """

    name: str
    shape: tuple[int, ...]
    use: str


def stored_name(name: str, kind: str) -> str:
    """Our name as the checkpoint spells it; "" when that kind never stores it. `kind`: gguf | safetensors."""
    layer, dot, rest = name.partition(".")
    key = f"{{n}}.{rest}" if dot else name
    gguf, hugging_face = NAMES[key]
    return (gguf if kind == "gguf" else hugging_face).replace("{n}", layer)
